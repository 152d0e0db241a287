package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// wrongHost makes a host on which many things are wrong for an account. It has its own /etc, /tmp, /usr/bin, /dev/net, home and network.
// The package manager installs from copies in /srv/saved.
const wrongHost = `
mount --make-rprivate /
mount -t tmpfs -o mode=755 none /srv
mkdir /srv/saved /srv/upper /srv/work
cp -a /etc /srv/etc
mount --bind /srv/etc /etc
rm -f /etc/os-release && echo ID=debian > /etc/os-release

sed -i "/^$ACCOUNT:/d" /etc/subuid /etc/subgid
printf '%s:3000000:65536\r\n' "$ACCOUNT" >> /etc/subgid
rm -f /etc/hosts /etc/resolv.conf
echo '# no name server' > /etc/resolv.conf
for dir in ssl pki; do [ ! -e /etc/$dir ] || mv /etc/$dir /srv/saved/; done

mount -t overlay -o lowerdir=/usr/bin,upperdir=/srv/upper,workdir=/srv/work none /usr/bin
cp /usr/bin/newgidmap /srv/saved/plain && rm /usr/bin/newgidmap && cp /srv/saved/plain /usr/bin/newgidmap && chmod 755 /usr/bin/newgidmap
mv /usr/bin/nsenter /srv/saved/
rm -f /usr/bin/apt-get
cat > /usr/bin/apt-get << 'EOT'
#!/bin/sh
for package in "$@"; do
	case $package in
	util-linux) cp /srv/saved/nsenter /usr/bin/ ;;
	ca-certificates) cp -a /srv/saved/ssl /etc/ ;;
	esac
done
EOT
chmod 755 /usr/bin/apt-get

mkdir -p /srv/home/.local/share && chown "$ACCOUNT" /srv/home /srv/home/.local && mount --bind /srv/home "$ACCOUNT_HOME"
mkdir -m 755 /srv/tmp && mount --bind /srv/tmp /tmp
mount -t tmpfs none /dev/net && mknod -m 666 /dev/net/tun c 1 3
ip link set lo up
ip link add eth0 type veth peer name eth1
ip address add 10.42.7.1/24 dev eth0
ip link set eth0 up && ip link set eth1 up
`

// TestWrongHost checks that one check reports every fault of a host, that root's commands fix those that root can fix, and that the node
// then starts. The test acts as root of the host.
func TestWrongHost(t *testing.T) {
	t.Parallel()
	account := os.Getenv(envAccount)
	testutil.Require(t, built, testutil.Root, testutil.Program("ip"), testutil.Program("nsenter"), testutil.Requirement{Name: "e2e-account", Check: func() error {
		_, err := user.Lookup(account)
		return err
	}})
	u, err := user.Lookup(account)
	assert.NilError(t, err)
	assert.NilError(t, os.MkdirAll(u.HomeDir, 0o755))
	script := fmt.Sprintf("ACCOUNT=%s ACCOUNT_HOME=%s\n", account, u.HomeDir) + wrongHost
	pid := hold(t, strings.TrimSpace(script), "--mount", "--net", "--propagation", "private")
	root := []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", pid), fmt.Sprintf("--net=/proc/%d/ns/net", pid), "--"}

	wrong := slices.Concat(root, []string{binary("rootlessnode"), "host", "enter", "--user", account, "--command", "--", "env", "https_proxy=http://proxy:31x28"})
	args := []string{"--set", "dataDir=/srv/node"}
	n := &testNode{t: t, name: "e2e-wronghost", wrap: wrong}
	found := n.findings(args...)
	byRoot := []string{
		"RN-SUBIDS no row in /etc/subuid", "RN-SUBIDS ends with a carriage return", "RN-IDMAP no privilege to map ids: /usr/bin/newgidmap",
		"RN-HOME .local/share: permission denied", "RN-DATA-DIR /srv is not writable", "RN-TUN is not a TUN device",
		"RN-TMP cannot create files in /tmp", "RN-HOSTS no such file", "RN-PROGRAMS not found on PATH: nsenter", "RN-CA-FILES no certificate authorities",
		"RN-MOUNTS root mount is private",
	}
	byUser := []string{"RN-PROXY https_proxy is not the URL of a proxy", "RN-ROUTES cluster.podCIDR 10.42.0.0/16 overlaps the host's route to 10.42.7.0/24"}
	byAdministrator := []string{"RN-RESOLV-CONF has no name server"}
	for _, want := range slices.Concat(byRoot, byUser, byAdministrator) {
		assert.Check(t, has(found, want), "%s is not in:\n%s", want, strings.Join(found, "\n"))
	}
	_, stderr, code := n.try(podLimit, append([]string{"up"}, args...)...)
	assert.Equal(t, code, 3, stderr)
	for _, want := range []string{"error: RN-SUBIDS: ", "error: RN-TUN: ", "error: RN-PROXY: "} {
		assert.Check(t, cmp.Contains(stderr, want))
	}

	commands := n.run(podLimit, append([]string{"check", "--root-script"}, args...)...)
	for range 2 { // it can be run again
		cmd := exec.CommandContext(t.Context(), root[0], append(root[1:], "/bin/sh")...)
		cmd.Stdin = strings.NewReader(commands)
		out, err := cmd.CombinedOutput()
		assert.NilError(t, err, "%s\n%s", out, commands)
	}
	for _, want := range byRoot {
		assert.Check(t, !has(n.findings(args...), want), "not fixed: %s\n%s", want, commands)
	}
	n.wrap = slices.Delete(wrong, len(wrong)-2, len(wrong))
	n = newNodeOf(t, n.name, n.wrap, "--set", "dataDir=/srv/node", "--set", "cluster.podCIDR=10.142.0.0/16")
	for _, f := range n.findings(n.args...) {
		assert.Check(t, !strings.HasPrefix(f, "fail "), f)
	}
	n.inRoot(root, "ln -sf ../run/missing/stub.conf /etc/resolv.conf")
	n.up()
	assert.Check(t, cmp.Contains(n.run(podLimit, "exec", "--", "cat", "/etc/hosts"), "localhost"))
	n.keepsNameServers(root)
}

// inRoot runs a script as root of the host.
func (n *testNode) inRoot(root []string, script string) {
	n.t.Helper()
	out, err := exec.CommandContext(n.t.Context(), root[0], append(root[1:], "/bin/sh", "-ec", script)...).CombinedOutput()
	assert.NilError(n.t, err, "%s", out)
}

// keepsNameServers checks that the node has name servers of its own, also after the host's resolv.conf was replaced.
func (n *testNode) keepsNameServers(root []string) {
	n.t.Helper()
	const script = "test -f /etc/resolv.conf && test ! -L /etc/resolv.conf && cat /etc/resolv.conf"
	before := n.run(podLimit, "exec", "--", "sh", "-c", script)
	assert.Check(n.t, cmp.Contains(before, "nameserver 10."))
	n.inRoot(root, "echo nameserver 192.0.2.1 >/etc/resolv.new && mv /etc/resolv.new /etc/resolv.conf")
	n.inRoot(root, "rm /etc/resolv.conf && ln -s ../run/other.conf /etc/resolv.conf")
	assert.Equal(n.t, n.run(podLimit, "exec", "--", "sh", "-c", script), before)
}

// findings returns the findings of check that did not pass, as "LEVEL CODE MESSAGE".
func (n *testNode) findings(args ...string) []string {
	n.t.Helper()
	out, stderr, _ := n.try(podLimit, append([]string{"check", "-o", "json"}, args...)...)
	var all []struct{ Code, Level, Message string }
	assert.NilError(n.t, json.Unmarshal([]byte(out), &all), "%s%s", out, stderr)
	var found []string
	for _, f := range all {
		if f.Level != "pass" {
			found = append(found, f.Level+" "+f.Code+" "+f.Message)
		}
	}
	return found
}

// has reports whether a finding has the code and the text in want, "CODE TEXT".
func has(found []string, want string) bool {
	code, text, _ := strings.Cut(want, " ")
	return slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, " "+code+" ") && strings.Contains(f, text) })
}
