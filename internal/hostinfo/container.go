package hostinfo

import (
	"os"
	"path/filepath"
	"strings"
)

// Kinds of containers that can be told.
const (
	Docker     = "docker"
	Podman     = "podman"
	Kubernetes = "kubernetes"
	LXC        = "lxc"
)

// DetectContainer tells in what kind of container root is, "" for none that shows. Docker and Podman leave a file, a kubelet
// mounts a service account's token unless asked not to, and LXC, as systemd's container interface has it, leaves its name.
func DetectContainer(root string) string {
	for _, f := range []struct{ path, kind string }{
		{"/var/run/secrets/kubernetes.io", Kubernetes}, {"/run/secrets/kubernetes.io", Kubernetes},
		{"/run/.containerenv", Podman}, {"/.dockerenv", Docker},
	} {
		if _, err := os.Lstat(filepath.Join(root, f.path)); err == nil {
			return f.kind
		}
	}
	if b, err := os.ReadFile(filepath.Join(root, "/run/systemd/container")); err == nil {
		switch name := strings.TrimSpace(string(b)); name {
		case Docker, Podman, LXC:
			return name
		}
	}
	return ""
}

// setting is what to change outside of a container of some kind.
type setting struct{ kind, text string }

func of(kind string, all []setting) []string {
	var out []string
	for _, s := range all {
		if kind == "" || s.kind == kind {
			out = append(out, s.text)
		}
	}
	if kind == "" || len(out) == 0 {
		out = append(out, "A privileged container has it too, and much more.")
	}
	return out
}

// UnmaskedProc says what makes all of /proc visible in a container, for its kind or, with "", for each.
func UnmaskedProc(kind string) []string {
	return of(kind, []setting{
		{Docker, "Docker: docker run --security-opt systempaths=unconfined"},
		{Podman, "Podman: podman run --security-opt unmask=ALL"},
		{Kubernetes, "Kubernetes: securityContext.procMount: Unmasked of the container, which wants hostUsers: false of the pod"},
		{LXC, "LXC: lxc.include = /usr/share/lxc/config/nesting.conf; Incus and LXD: security.nesting=true"},
	})
}

// WritableCgroups says what makes the cgroup2 tree of a container writable, for its kind or, with "", for each.
func WritableCgroups(kind string) []string {
	return of(kind, []setting{
		{Docker, "Docker 28 or later: docker run --cgroupns=private --security-opt writable-cgroups=true"},
		{Podman, "Podman: podman run --cgroupns=private --security-opt unmask=/sys/fs/cgroup"},
		{Kubernetes, "Kubernetes: cgroup_writable = true of the runtime in the configuration of the host's containerd (2.1 or later), " +
			"or under CRI-O the pod's annotation io.kubernetes.cri-o.cgroup2-mount-hierarchy-rw: \"true\""},
		{LXC, "LXC: lxc.include = /usr/share/lxc/config/nesting.conf; Incus and LXD: security.nesting=true"},
	})
}
