package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

// hostileLogin is the prefix of a command whose login session has unusual attributes: a umask that hides all files from other users, low
// soft limits, ignored signals, a deleted working directory, an inherited descriptor, a proxy that does not respond, and variables that
// change programs.
func hostileLogin() []string {
	const script = `umask 077
dir=$(mktemp -d); cd "$dir"; rmdir "$dir"
ulimit -S -n 1024; ulimit -S -f 2000000; ulimit -S -c 0
trap '' PIPE HUP INT CHLD
export LC_ALL=xx_XX LANG=xx_XX TMPDIR=/nonexistent LD_LIBRARY_PATH=/nonexistent GODEBUG=x=1 GOMAXPROCS=1 ETCD_NAME=x KUBECONFIG=/nonexistent
export HTTP_PROXY=http://127.0.0.1:9 HTTPS_PROXY=http://127.0.0.1:9
exec 9</etc/passwd nice -n 5 "$@"`
	return []string{"sh", "-c", script, "sh"}
}

// isolatedFromLogin checks that the attributes of hostileLogin have no effect on components and pods.
func (n *testNode) isolatedFromLogin() {
	n.t.Helper()
	pid := fmt.Sprint(n.pidOutside("kubelet"))
	read := func(name string) string {
		b, err := os.ReadFile("/proc/" + pid + "/" + name)
		assert.NilError(n.t, err)
		return string(b)
	}
	status := read("status")
	for _, line := range []string{"Umask:\t0022", "SigIgn:\t0000000000000000"} { // a thread of the Go runtime blocks signals
		assert.Check(n.t, cmp.Contains(status, line))
	}
	for line := range strings.Lines(read("limits")) {
		if f := strings.Fields(line); strings.HasPrefix(line, "Max file size") || strings.HasPrefix(line, "Max open files") {
			assert.Check(n.t, f[3] == f[4] || f[3] == "1048576", line)
		}
	}
	env := strings.Split(read("environ"), "\x00")
	for _, v := range []string{"TMPDIR", "LD_LIBRARY_PATH", "GODEBUG", "GOMAXPROCS", "ETCD_NAME", "LC_ALL", "KUBECONFIG"} {
		assert.Check(n.t, !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, v+"=") }), v)
	}
	assert.Check(n.t, slices.Contains(env, "LANG=C.UTF-8"))
	assert.Check(n.t, slices.Contains(env, "https_proxy=http://127.0.0.1:9"))
	assert.Check(n.t, strings.Contains(strings.Join(n.status().Warnings, "\n"), "add 9 to network.hostPorts"))
	cwd, err := os.Readlink("/proc/" + pid + "/cwd")
	assert.NilError(n.t, err)
	assert.Check(n.t, cmp.Equal(cwd, "/"))
	hosts := n.run(podLimit, "exec", "--", "cat", "/etc/hosts")
	for _, line := range []string{"127.0.0.1 localhost", "127.0.0.1 " + n.status().NodeName} {
		assert.Check(n.t, strings.Contains(strings.ReplaceAll(hosts, "\t", " "), line), hosts)
	}
	assert.Check(n.t, cmp.Contains(n.kubectl("-n", "kube-system", "logs", "-l", "k8s-app=kube-dns"), "CoreDNS")) // not through the proxy
}
