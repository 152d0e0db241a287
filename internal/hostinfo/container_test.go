package hostinfo

import (
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

func TestDetectContainer(t *testing.T) {
	t.Parallel()
	for kind, files := range map[string]map[string]string{
		"": {"etc/passwd": ""}, Docker: {".dockerenv": ""}, Podman: {"run/.containerenv": "", ".dockerenv": ""},
		Kubernetes: {"run/secrets/kubernetes.io/serviceaccount/token": "x", ".dockerenv": ""}, LXC: {"run/systemd/container": "lxc\n"},
	} {
		root := t.TempDir()
		for path, text := range files {
			write(t, root, path, text)
		}
		assert.Equal(t, DetectContainer(root), kind)
	}
}

func TestContainerSettings(t *testing.T) {
	t.Parallel()
	for _, settings := range []func(string) []string{UnmaskedProc, WritableCgroups, TunInContainer, OpenFilesInContainer, MoreIDs, NoAppArmor} {
		assert.Equal(t, len(settings("")), 5, "one for each kind, and the general one")
		for kind, want := range map[string]string{Docker: "Docker", Podman: "podman run", Kubernetes: "Kubernetes:", LXC: "Incus"} {
			got := settings(kind)
			assert.Equal(t, len(got), 1)
			assert.Assert(t, strings.Contains(got[0], want), got[0])
		}
	}
}

func TestEngineProfile(t *testing.T) {
	t.Parallel()
	for label, want := range map[string]bool{
		"docker-default (enforce)\n": true, "containers-default-0.57.4 (enforce)": true, "cri-containerd.apparmor.d (enforce)\x00": true,
		"docker-default (complain)\n": false, "unconfined\n": false, "usr.local.bin.rootlessnode (unconfined)": false, "": false,
	} {
		assert.Equal(t, EngineProfile(label), want, label)
	}
}
