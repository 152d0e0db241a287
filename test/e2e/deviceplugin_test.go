package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"gotest.tools/v3/assert"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// envDevicePlugin makes the test binary a device plugin, which a pod runs.
const envDevicePlugin = "ROOTLESSNODE_E2E_DEVICE_PLUGIN"

// The resource of the device plugin, and its device in a CDI specification.
const (
	deviceResource = "rootlessnode.test/device"
	cdiKind        = "rootlessnode.test/device"
	cdiSpec        = `{"cdiVersion": "0.6.0", "kind": "` + cdiKind + `", "devices": [{"name": "one", "containerEdits": {
		"env": ["BY_CDI=yes"], "mounts": [{"hostPath": "/run/cdi", "containerPath": "/by-cdi", "options": ["ro", "bind"]}]}}]}`
)

// devicePlugin is a device plugin with one device, which is both in a CDI specification and a device node.
type devicePlugin struct {
	deviceplugin.UnimplementedDevicePluginServer
}

// serveDevicePlugin registers the plugin with the kubelet and serves it until the pod ends.
func serveDevicePlugin() error {
	socket := filepath.Join(deviceplugin.DevicePluginPath, "rootlessnode-test.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	deviceplugin.RegisterDevicePluginServer(server, devicePlugin{})
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	c, err := grpc.NewClient("unix:"+deviceplugin.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	_, err = deviceplugin.NewRegistrationClient(c).Register(context.Background(), &deviceplugin.RegisterRequest{
		Version: deviceplugin.Version, Endpoint: filepath.Base(socket), ResourceName: deviceResource,
	})
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	return <-done
}

func (devicePlugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

func (devicePlugin) ListAndWatch(_ *deviceplugin.Empty, stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	err := stream.Send(&deviceplugin.ListAndWatchResponse{Devices: []*deviceplugin.Device{{ID: "one", Health: deviceplugin.Healthy}}})
	if err == nil {
		<-stream.Context().Done()
	}
	return err
}

func (devicePlugin) Allocate(_ context.Context, r *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	out := &deviceplugin.AllocateResponse{}
	for range r.ContainerRequests {
		out.ContainerResponses = append(out.ContainerResponses, &deviceplugin.ContainerAllocateResponse{
			CdiDevices: []*deviceplugin.CDIDevice{{Name: cdiKind + "=one"}},
			// In a user namespace, runc binds the device of the same path.
			Devices: []*deviceplugin.DeviceSpec{{ContainerPath: "/dev/net/tun", HostPath: "/dev/net/tun", Permissions: "rw"}},
		})
	}
	return out, nil
}

// useDevicePlugin runs the plugin in a pod, and a pod with its device.
func (n *testNode) useDevicePlugin() {
	program, err := os.Executable()
	assert.NilError(n.t, err)
	n.run(podLimit, "exec", "--", "sh", "-c", "mkdir -p /run/cdi && cat > /run/cdi/rootlessnode.test.json <<'END'\n"+cdiSpec+"\nEND\n")
	n.apply(strings.NewReplacer("IMAGE", testImage, "PROGRAM", program, "VARIABLE", envDevicePlugin, "RESOURCE", deviceResource,
		"DIRECTORY", strings.TrimSuffix(deviceplugin.DevicePluginPath, "/")).Replace(`
apiVersion: v1
kind: Pod
metadata: {name: device-plugin}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: plugin
    image: IMAGE
    command: [/plugin]
    env: [{name: VARIABLE, value: "1"}]
    volumeMounts: [{name: plugins, mountPath: DIRECTORY}, {name: program, mountPath: /plugin}]
  volumes:
  - {name: plugins, hostPath: {path: DIRECTORY, type: Directory}}
  - {name: program, hostPath: {path: PROGRAM, type: File}}
---
apiVersion: v1
kind: Pod
metadata: {name: device-user}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: IMAGE, command: [sleep, "1000"], resources: {limits: {RESOURCE: 1}}}
`))
	n.t.Cleanup(func() { n.kubectl("delete", "pod", "--now", "device-plugin", "device-user") })
	n.waitPod("device-user")
	out := n.kubectl("exec", "device-user", "--", "sh", "-c", `echo "$BY_CDI"; ls /by-cdi; test -c /dev/net/tun && echo device`)
	assert.DeepEqual(n.t, strings.Fields(out), []string{"yes", "rootlessnode.test.json", "device"})
}
