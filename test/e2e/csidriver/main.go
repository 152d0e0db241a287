// Command csidriver is a CSI driver for the end-to-end tests. It is deployed, registered and called like any other driver, so it
// shows whether CSI drivers work in a rootless node.
//
//	csidriver NAME NODE  registers driver NAME with the kubelet of node NODE and serves it until SIGTERM
//
// See node.go for the kinds of volumes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// pluginsDir is the kubelet's directory for drivers' sockets and for staging paths.
const pluginsDir = "/var/lib/kubelet/plugins"

// registryDir is the directory in which the kubelet looks for the registration sockets of plugins.
const registryDir = "/var/lib/kubelet/plugins_registry"

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: csidriver NAME NODE")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := serve(ctx, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

// serve runs the driver's services and the registration until ctx ends, and then removes the sockets.
func serve(ctx context.Context, name, node string) error {
	dir := filepath.Join(pluginsDir, name)
	socket := filepath.Join(dir, "csi.sock")
	plugin := grpc.NewServer(grpc.UnaryInterceptor(logged))
	csi.RegisterIdentityServer(plugin, &identity{name: name})
	csi.RegisterNodeServer(plugin, &nodeService{node: node, dataDir: filepath.Join(dir, "volumes")})
	registrar := grpc.NewServer(grpc.UnaryInterceptor(logged))
	registration.RegisterRegistrationServer(registrar, &register{name: name, socket: socket})

	// The plugin comes first: the kubelet calls it as soon as it sees the registration.
	l, err := listen(socket)
	if err != nil {
		return err
	}
	reg, err := listen(filepath.Join(registryDir, name+"-reg.sock"))
	if err != nil {
		return errors.Join(err, l.Close())
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return plugin.Serve(l) })
	g.Go(func() error { return registrar.Serve(reg) })
	g.Go(func() error {
		<-ctx.Done()
		registrar.Stop()
		plugin.Stop()
		return nil
	})
	return g.Wait()
}

// listen opens a socket. It replaces a socket that a killed driver left.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
}

func logged(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	answer, err := handle(ctx, req)
	log.Printf("%s {%v}: %v", info.FullMethod, req, err)
	return answer, err
}

// register implements the registration service for the kubelet's plugin watcher.
type register struct {
	registration.UnimplementedRegistrationServer
	name, socket string
}

func (r *register) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: r.name, Endpoint: r.socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r *register) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	log.Printf("registered: %v %s", s.PluginRegistered, s.Error) // the tests count these
	return &registration.RegistrationStatusResponse{}, nil
}

// identity implements the identity service. It reports no capabilities, because there is no controller service.
type identity struct {
	csi.UnimplementedIdentityServer
	name string
}

func (i *identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.name, VendorVersion: "1"}, nil
}

func (i *identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (i *identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}
