package hostinfo

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// Kinds of containers that DetectContainer distinguishes.
const (
	Docker     = "docker"
	Podman     = "podman"
	Kubernetes = "kubernetes"
	LXC        = "lxc"
)

// DetectContainer returns the kind of container that root belongs to, or "" if none is detected. Docker and Podman create a file,
// the kubelet mounts a service account token by default, and LXC writes its name as in systemd's container interface.
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

// LacksSysAdmin reports whether no program that this process starts can have CAP_SYS_ADMIN, not even as root. This is the case in
// containers, but not on a machine whose file system was created from a container image.
func LacksSysAdmin(root string) bool {
	caps, err := strconv.ParseUint(proc.FS(filepath.Join(root, "/proc")).SelfStatus("CapBnd"), 16, 64)
	return err == nil && caps&(1<<unix.CAP_SYS_ADMIN) == 0
}

// OuterSettings returns settings as shell comments. They are settings that can be changed only outside the container.
func OuterSettings(settings []string) []string {
	lines := []string{"# start the container with other options:"}
	for _, s := range settings {
		lines = append(lines, "# "+s)
	}
	return lines
}

// setting is a setting outside the container, for one kind of container.
type setting struct{ kind, text string }

// forKind returns the settings for kind, or those for each kind if kind is "".
func forKind(kind string, all []setting) []string {
	var out []string
	for _, s := range all {
		if kind == "" || s.kind == kind {
			out = append(out, s.text)
		}
	}
	if kind == "" || len(out) == 0 {
		out = append(out, "A privileged container also works, but has many more privileges.")
	}
	return out
}

// UnmaskedProc returns the settings that make /proc fully visible in a container of this kind, or of each kind for "".
func UnmaskedProc(kind string) []string {
	return forKind(kind, []setting{
		{Docker, "Docker: docker run --security-opt systempaths=unconfined"},
		{Podman, "Podman: podman run --security-opt unmask=ALL"},
		{Kubernetes, "Kubernetes: securityContext.procMount: Unmasked of the container, which requires hostUsers: false of the pod"},
		{LXC, "LXC: lxc.include = /usr/share/lxc/config/nesting.conf; Incus and LXD: security.nesting=true"},
	})
}

// TunInContainer returns the settings that add /dev/net/tun to a container of this kind, or of each kind for "".
func TunInContainer(kind string) []string {
	return forKind(kind, []setting{
		{Docker, "Docker: docker run --device " + TunDevice},
		{Podman, "Podman: podman run --device " + TunDevice},
		{Kubernetes, "Kubernetes: a device plugin for " + TunDevice + ", requested in the container's resources"},
		{LXC, "LXC: lxc.mount.entry = " + TunDevice + " dev/net/tun none bind,create=file; Incus and LXD: a device of type unix-char"},
	})
}

// OpenFilesInContainer returns the settings that raise the limit of open files of a container of this kind, or of each kind for "".
func OpenFilesInContainer(kind string) []string {
	limit := strconv.Itoa(OpenFiles)
	return forKind(kind, []setting{
		{Docker, "Docker: docker run --ulimit nofile=" + limit},
		{Podman, "Podman: podman run --ulimit nofile=" + limit},
		{Kubernetes, "Kubernetes: LimitNOFILE= of the host's container runtime, from which containers inherit their limit"},
		{LXC, "LXC: lxc.prlimit.nofile = " + limit + "; Incus and LXD: limits.kernel.nofile"},
	})
}

// EngineProfile reports whether an AppArmor label, in the format of /proc/self/attr/current, is the enforced default profile of a
// container engine. The profiles of Docker, Podman and containerd forbid every mount, also in new namespaces. Pure.
func EngineProfile(label string) bool {
	name, mode, _ := strings.Cut(strings.TrimRight(label, "\n\x00"), " ")
	known := name == "docker-default" || name == "cri-containerd.apparmor.d" || strings.HasPrefix(name, "containers-default-")
	return known && mode == "(enforce)"
}

// NoAppArmor returns the settings that disable the AppArmor profile of a container of this kind, or of each kind for "".
func NoAppArmor(kind string) []string {
	return forKind(kind, []setting{
		{Docker, "Docker: docker run --security-opt apparmor=unconfined"},
		{Podman, "Podman: podman run --security-opt apparmor=unconfined"},
		{Kubernetes, "Kubernetes: securityContext.appArmorProfile: {type: Unconfined}"},
		{LXC, "LXC: lxc.apparmor.profile = unconfined; Incus and LXD: security.nesting=true"},
	})
}

// NoSeccomp returns the settings that disable the seccomp filter of a container of this kind, or of each kind for "".
func NoSeccomp(kind string) []string {
	return forKind(kind, []setting{
		{Docker, "Docker: docker run --security-opt seccomp=unconfined"},
		{Podman, "Podman: podman run --security-opt seccomp=unconfined"},
		{Kubernetes, "Kubernetes: securityContext.seccompProfile: {type: Unconfined}"},
		{LXC, "LXC: an empty lxc.seccomp.profile; Incus and LXD: security.syscalls.deny_default=false"},
	})
}

// MoreIDs returns the settings that add ids to the user namespace of a container of this kind, or of each kind for "", so that it
// has enough for an account and its subordinate ids.
func MoreIDs(kind string) []string {
	return forKind(kind, []setting{
		{Docker, "Docker with userns-remap: a larger range of dockremap in the host's " + SubuidFile + " and " + SubgidFile},
		{Podman, "Podman: podman run --userns=auto:size=200000, or a larger range for the account that runs podman"},
		{Kubernetes, "Kubernetes: userNamespaces.idsPerPod: 131072 or more in the host's kubelet configuration"},
		{LXC, "LXC: larger ranges in lxc.idmap; Incus and LXD: security.idmap.size"},
	})
}

// WritableCgroups returns the settings that make the cgroup2 tree of a container of this kind writable, or of each kind for "".
func WritableCgroups(kind string) []string {
	return forKind(kind, []setting{
		{Docker, "Docker 28 or later: docker run --cgroupns=private --security-opt writable-cgroups=true; " +
			"before: docker run --cgroupns=host --cgroup-parent=/NAME --volume /sys/fs/cgroup/NAME:/sys/fs/cgroup"},
		{Podman, "Podman: podman run --cgroupns=private --security-opt unmask=/sys/fs/cgroup"},
		{Kubernetes, "Kubernetes: cgroup_writable = true of the runtime in the configuration of the host's containerd (2.1 or later), " +
			"or under CRI-O the pod's annotation io.kubernetes.cri-o.cgroup2-mount-hierarchy-rw: \"true\""},
		{LXC, "LXC: lxc.include = /usr/share/lxc/config/nesting.conf; Incus and LXD: security.nesting=true"},
	})
}
