package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

// envImage is the path of an OCI archive with a shell. hack/test.sh creates it; the image is named testImage.
const (
	envImage  = "ROOTLESSNODE_E2E_IMAGE"
	testImage = "rootlessnode.test/busybox:1"
)

const webManifest = `
apiVersion: v1
kind: ConfigMap
metadata: {name: web}
data: {greeting: hello from a ConfigMap}
---
apiVersion: v1
kind: Secret
metadata: {name: web}
stringData: {token: not-for-everyone}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: server
    image: rootlessnode.test/busybox:1
    command: [/bin/sh, -c, "cp /config/greeting /data/index.html; echo serving; exec httpd -f -p 8080 -h /data"]
    ports: [{containerPort: 8080}]
    resources: {limits: {cpu: 200m, memory: 64Mi}}
    readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /data}, {name: config, mountPath: /config}]
  - name: helper
    image: rootlessnode.test/busybox:1
    command: [/bin/sh, -c, "trap exit TERM; while true; do sleep 1; done"]
    env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: web, key: token}}}]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - {name: data, emptyDir: {}}
  - {name: config, configMap: {name: web}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: %d}]
`

// TestCluster starts one node, uses it in the ordinary ways, stops it and starts it again.
func TestCluster(t *testing.T) {
	t.Parallel()
	n := newNode(t, "e2e-cluster")
	out := n.up()
	assert.Assert(t, cmp.Contains(out, "Ready"))

	t.Run("runs in a user namespace, and no process runs as root", func(t *testing.T) {
		n := n.in(t)
		got := n.kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.nodeInfo.runningInUserNamespace}")
		assert.Equal(t, got, "true")
		found := processes(n.name)
		assert.Assert(t, len(found) >= 10, "only these processes: %v", found)
		alive := 0
		for _, p := range found { // some processes are short-lived
			pid, _, _ := strings.Cut(p, " ")
			uid, lives := uidOf(t, pid)
			assert.Assert(t, !lives || uid != 0, "runs as root: %s", p)
			if lives {
				alive++
			}
		}
		assert.Assert(t, alive >= 10, "only %d processes are left: %v", alive, found)
	})
	nodePort := 30080
	n.importImage()
	n.apply(fmt.Sprintf(webManifest, nodePort))
	n.waitPod("web")
	n.use(nodePort)
	n.conditions()

	t.Run("is back after down and up", func(t *testing.T) {
		n := n.in(t)
		n.kubectl("-n", "kube-system", "scale", "deployment", "coredns", "--replicas=2")
		n.apply(fmt.Sprintf(customDNS, "no-such-plugin"))
		n.apply(onceManifest)
		n.waitPod("once")
		eventually(t, portsLimit, "the port of a ready pod", func() error {
			return get("http://"+loopback.port(oncePort)+"/", "hello from once")
		})
		n.down()
		noTrace(t, n.name)
		accepted := countAccepted(t, oncePort)
		n.upWithoutDNS()
		n.waitPod("web")
		n.answers(nodePort)
		assert.Equal(t, accepted(), int64(0), "no pod of this run was ready")
		n.unusedAddresses()
		replicas := n.kubectl("-n", "kube-system", "get", "deployment", "coredns", "-o", "jsonpath={.spec.replicas}")
		assert.Equal(t, replicas, "2", "set by the user")
		n.customName()
	})
	t.Run("down stops pods as the kubelet does", func(t *testing.T) { n.in(t).stopsPods() })
}

// use runs the usual kubectl commands on the pod web.
func (n *testNode) use(nodePort int) {
	n.t.Helper()
	sub := func(name string, f func(n *testNode)) {
		n.t.Run(name, func(t *testing.T) { f(n.in(t)) })
	}
	sub("logs", func(n *testNode) {
		assert.Assert(n.t, cmp.Contains(n.kubectl("logs", "web", "-c", "server"), "serving"))
	})
	sub("exec sees the Secret and the shared emptyDir", func(n *testNode) {
		got := n.kubectl("exec", "web", "-c", "helper", "--", "/bin/sh", "-c", "echo $TOKEN; cat /data/index.html")
		assert.Equal(n.t, got, "not-for-everyone\nhello from a ConfigMap")
	})
	sub("cp", func(n *testNode) {
		file := filepath.Join(n.t.TempDir(), "copied")
		n.kubectl("cp", "-c", "helper", "web:/data/index.html", file)
		b, err := os.ReadFile(file)
		assert.NilError(n.t, err)
		assert.Equal(n.t, string(b), "hello from a ConfigMap")
	})
	sub("describe", func(n *testNode) {
		assert.Assert(n.t, cmp.Contains(n.kubectl("describe", "pod", "web"), "Ready"))
	})
	sub("cluster DNS", func(n *testNode) {
		eventually(n.t, podLimit, "the Service's name resolves in a pod", func() error {
			out, stderr, code := n.try(podLimit, "kubectl", "exec", "web", "-c", "helper", "--",
				"netprobe", "get", "http://web.default.svc.cluster.local/")
			if code != 0 || !strings.Contains(out, "hello") {
				return fmt.Errorf("exit %d: %s%s", code, out, stderr)
			}
			return nil
		})
	})
	sub("node port answers on the host", func(n *testNode) { n.answers(nodePort) })
	sub("port-forward", func(n *testNode) { n.portForward("web", n.answers) })
	sub("kubectl of the host with the printed kubeconfig", func(n *testNode) {
		file := strings.TrimSpace(n.run(podLimit, "kubeconfig", "--path"))
		st, err := os.Stat(file)
		assert.NilError(n.t, err)
		assert.Equal(n.t, st.Mode().Perm(), os.FileMode(0o600))
		cmd := exec.Command(filepath.Join(os.Getenv(envOut), "libexec", "rootlessnode", "kubectl"), "get", "nodes")
		cmd.Env = append(os.Environ(), "KUBECONFIG="+file)
		out, err := cmd.CombinedOutput()
		assert.NilError(n.t, err, "%s", out)
		assert.Assert(n.t, cmp.Contains(string(out), "Ready"))
	})
	sub("a pod reaches neither the host's own addresses nor its loopback", func(n *testNode) { n.hostNetwork(nodePort) })
	sub("exec is in the node's own cgroup", func(n *testNode) {
		got := n.run(podLimit, "exec", "--", "cat", "/proc/self/cgroup")
		assert.Assert(n.t, cmp.Contains(got, "0::/system/exec/"))
		_, _, code := n.try(podLimit, "exec", "--", "sh", "-c", "exit 7")
		assert.Equal(n.t, code, 7)
	})
	sub("exec is in all namespaces of the node", func(n *testNode) {
		const script = "for n in cgroup ipc mnt net pid user uts; do [ $(readlink /proc/self/ns/$n) = $(readlink /proc/1/ns/$n) ] || echo $n; done"
		assert.Equal(n.t, n.run(podLimit, "exec", "--", "sh", "-c", script), "")
		assert.Assert(n.t, cmp.Contains(n.run(podLimit, "exec", "--", "readlink", "/proc/self/exe"), "bin/"))
	})
	sub("top shows kubelet and pod", func(n *testNode) { n.measured() })
	sub("mounts are listed by owner, and hidden from the host", func(n *testNode) {
		got := n.run(podLimit, "mounts")
		for _, want := range []string{"default/web", "container helper", "volume kube-api-access-", "the host sees 0 of the "} {
			assert.Check(n.t, cmp.Contains(got, want))
		}
	})
	sub("listens only where docs/security.md says", func(n *testNode) { n.onlyDocumentedListeners() })
	sub("report has no secrets", func(n *testNode) { n.reportWithoutSecrets() })
	sub("status shows limits that are not enforced", func(n *testNode) {
		s := n.status()
		label := n.kubectl("get", "nodes", "-o", `jsonpath={.items[0].metadata.labels.rootlessnode\.dev/unenforced}`)
		assert.Equal(n.t, label != "", len(s.Cgroup.Unenforced) > 0, "label %q, status %v", label, s.Cgroup.Unenforced)
		assert.Assert(n.t, len(s.Cgroup.Controllers)+len(s.Cgroup.Unenforced) > 0)
		if label != "" {
			eventually(n.t, podLimit, "an Event on the Node", func() error {
				got := n.kubectl("get", "events", "--field-selector", "reason=LimitsNotEnforced", "-o", "jsonpath={.items[*].message}")
				if !strings.Contains(got, "not enforced") {
					return fmt.Errorf("Events: %q", got)
				}
				return nil
			})
		}
		reserved := n.kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.capacity.cpu} {.items[0].status.allocatable.cpu}")
		capacity, allocatable, _ := strings.Cut(reserved, " ")
		assert.Assert(n.t, capacity != allocatable, "nothing is reserved for the components: %s", reserved)
	})
}

// topRow has the fields of the output of `top` that are checked.
type topRow struct {
	Name, Namespace   string
	CPU               *float64
	MemoryBytes, Pids uint64
}

// measured checks the rows of top for components and pods against the cgroup files of the host.
func (n *testNode) measured() {
	n.t.Helper()
	var p struct {
		Node             topRow
		Components, Pods []topRow
	}
	text := n.run(podLimit, "top", "-o", "json", "-n", "500ms")
	assert.NilError(n.t, json.Unmarshal([]byte(text), &p))
	find := func(rows []topRow, namespace, name string) topRow {
		for _, r := range rows {
			if r.Namespace == namespace && r.Name == name {
				return r
			}
		}
		n.t.Fatalf("top does not show %s/%s: %s", namespace, name, text)
		return topRow{}
	}
	for _, r := range []topRow{p.Node, find(p.Components, "", "kubelet"), find(p.Pods, "default", "web")} {
		assert.Assert(n.t, r.MemoryBytes > 1<<20 && r.Pids > 0 && r.CPU != nil, "%+v", r)
		assert.Assert(n.t, r.Pids <= p.Node.Pids, "%+v", r)
	}
	n.t.Logf("top: %s", n.run(podLimit, "top", "-n", "2s"))
}

// in returns the node for a subtest.
func (n *testNode) in(t *testing.T) *testNode {
	c := *n
	c.t = t
	return &c
}

func (n *testNode) importImage() {
	n.t.Helper()
	n.run(podLimit, "images", "import", os.Getenv(envImage))
	images := answer[[]struct{ Name string }](n, "images", "list")
	assert.Assert(n.t, slices.ContainsFunc(images, func(i struct{ Name string }) bool { return i.Name == testImage }), "%v", images)
}

func (n *testNode) waitPod(name string) {
	n.t.Helper()
	n.kubectl("wait", "--for=condition=Ready", "pod/"+name, "--timeout", (podLimit - 5*time.Second).String())
}

// answers waits until the Service answers on the host.
func (n *testNode) answers(port int) {
	n.t.Helper()
	eventually(n.t, podLimit, fmt.Sprintf("port %d of the host answers", port), func() error {
		return get(fmt.Sprintf("http://127.0.0.1:%d/", port), "hello from a ConfigMap")
	})
}

func get(url, want string) error { return getBy((&net.Dialer{}).DialContext, url, want) }

func getBy(dial dialer, url, want string) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && !strings.Contains(string(b), want) {
		err = fmt.Errorf("%s answers %q", url, b)
	}
	return err
}

// portForward forwards a port of the host's loopback to port 8080 of a pod and calls check with its number.
func (n *testNode) portForward(pod string, check func(port int)) {
	n.t.Helper()
	port := freePort(n.t)
	cmd := n.command(n.t.Context(), "kubectl", "port-forward", "pod/"+pod, fmt.Sprintf("%d:8080", port))
	assert.NilError(n.t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	check(port)
}

// hostNetwork checks that a pod can reach a port of the node at the host's address, but neither a server on the host nor the host's
// loopback.
func (n *testNode) hostNetwork(nodePort int) {
	n.t.Helper()
	fetch := func(address string) (string, int) {
		out, stderr, code := n.try(podLimit, "kubectl", "exec", "web", "-c", "helper", "--",
			"netprobe", "get", "http://"+address+"/")
		return out + stderr, code
	}
	if ip := hostAddress(n.t); ip != "" {
		at := n.serve(ip, "hello from the host")
		out, code := fetch(at)
		assert.Assert(n.t, code != 0 && strings.Contains(out, "connection refused"), "exit %d: %s", code, out)
		own := hostIP(ip).port(freePort(n.t))
		forward := fmt.Sprintf("%s:%d", own, nodePort)
		n.run(podLimit, "ports", "add", forward)
		eventually(n.t, portsLimit, "a port of the node at the host's address", func() error {
			out, code := fetch(own)
			if code != 0 || !strings.Contains(out, "hello from a ConfigMap") {
				return fmt.Errorf("exit %d: %s", code, out)
			}
			return nil
		})
		n.run(podLimit, "ports", "remove", forward)
		n.openHost(ip)
		out, code = fetch(at)
		assert.Assert(n.t, code == 0 && strings.Contains(out, "hello from the host"), "exit %d: %s", code, out)
	}
	gateway := strings.Join(append(strings.Split(n.status().Network.Address, ".")[:3], "2"), ".")
	out, code := fetch(net.JoinHostPort(gateway, "30080"))
	assert.Assert(n.t, code != 0, "a pod reaches the host's loopback: %s", out)
}

// hostAddress returns an IPv4 address of the host that is not loopback, or "" if there is none.
func hostAddress(t *testing.T) string {
	t.Helper()
	return hostAddressThat(t, netip.Addr.Is4)
}

func hostAddressThat(t *testing.T, fits func(netip.Addr) bool) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	assert.NilError(t, err)
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && fits(p.Addr()) && !p.Addr().IsLoopback() {
			return p.Addr().String()
		}
	}
	return ""
}
