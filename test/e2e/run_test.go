package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

// everydayHostPort is the port of the host that is in network.hostPorts of the node of TestEveryday.
const everydayHostPort = 30599

const runManifest = `
apiVersion: v1
kind: Pod
metadata: {name: run-web, labels: {app: run-web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: server, image: "rootlessnode.test/busybox:1", command: [netprobe, serve, "8080"]}
---
apiVersion: v1
kind: Service
metadata: {name: run-web}
spec:
  selector: {app: run-web}
  ports: [{port: 80, targetPort: 8080}]
`

// runOnHost runs programs of the host in the node's network.
func (n *testNode) runOnHost() {
	n.apply(runManifest)
	n.waitPod("run-web")
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	assert.NilError(n.t, err)
	resolv, err := os.ReadFile("/etc/resolv.conf")
	assert.NilError(n.t, err)
	run := func(args ...string) string {
		n.t.Helper()
		return n.run(podLimit, append([]string{"run", "--"}, args...)...)
	}
	get := []string{"curl", "--silent", "--show-error", "--max-time", "10"}
	for _, name := range []string{"run-web.default.svc.cluster.local", "run-web"} {
		eventually(n.t, podLimit, "the Service answers", func() error {
			out, stderr, code := n.try(podLimit, slices.Concat([]string{"run", "--"}, get, []string{"http://" + name + "/"})...)
			if code != 0 || !strings.HasPrefix(out, "hello from run-web") {
				return fmt.Errorf("exit code %d: %s%s", code, out, stderr)
			}
			return nil
		})
	}
	l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", everydayHostPort))
	assert.NilError(n.t, err)
	host := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello from the host")) })}
	go func() { _ = host.Serve(l) }() // ends with Close
	defer func() { _ = host.Close() }()
	url := fmt.Sprintf("http://host.rootlessnode.internal:%d/", everydayHostPort)
	assert.Equal(n.t, run(append(get, url)...), "hello from the host")
	assert.Equal(n.t, n.run(podLimit, slices.Concat([]string{"exec", "--"}, get, []string{url})...), "hello from the host")
	assert.Equal(n.t, n.kubectl("exec", "run-web", "--", "netprobe", "get", url), "hello from the host")

	file := filepath.Join(n.t.TempDir(), "made")
	here, err := os.Getwd()
	assert.NilError(n.t, err)
	out := run("sh", "-c", `id -u; id -g; pwd; echo text > "$0"; tail -n 1 /etc/hosts; umount /etc/hosts 2> /dev/null || echo kept; ls /proc/self/fd | wc -l`, file)
	assert.Equal(n.t, out, fmt.Sprintf("%d\n%d\n%s\n169.254.100.1 host.rootlessnode.internal\nkept\n4\n", os.Getuid(), os.Getgid(), here))
	_, err = os.Stat(file)
	assert.NilError(n.t, err, "the host's file system")
	// The signal kills the program itself, which has the process id of "rootlessnode run".
	for script, want := range map[string]int{"exit 7": 7, "kill -KILL $$": -1, "exec /does/not/exist": 127} {
		_, _, code := n.try(podLimit, "run", "--", "sh", "-c", script)
		assert.Equal(n.t, code, want, script)
	}
	_, stderr, code := n.try(podLimit, "run", "--", "no-such-program")
	assert.Equal(n.t, code, 127)
	assert.Assert(n.t, cmp.Contains(stderr, "execute no-such-program: executable file not found"))

	after, err := os.ReadFile("/proc/self/mountinfo")
	assert.NilError(n.t, err)
	assert.Equal(n.t, string(after), string(mounts), "nothing is mounted on the host")
	unchanged, err := os.ReadFile("/etc/resolv.conf")
	assert.NilError(n.t, err)
	assert.Equal(n.t, string(unchanged), string(resolv))
}
