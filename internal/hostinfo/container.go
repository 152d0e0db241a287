package hostinfo

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
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

// LacksSysAdmin tells whether no program that this process starts can have CAP_SYS_ADMIN, root's neither: such is a container, and
// not a machine whose file system was made from a container's image.
func LacksSysAdmin(root string) bool {
	b, err := os.ReadFile(filepath.Join(root, "/proc/self/status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err == nil && caps&(1<<unix.CAP_SYS_ADMIN) == 0
		}
	}
	return false
}

// OuterSettings makes comments for a shell of settings that only who starts the container can change.
func OuterSettings(settings []string) []string {
	lines := []string{"# change how the container is started:"}
	for _, s := range settings {
		lines = append(lines, "# "+s)
	}
	return lines
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

// TunInContainer says what gives a container the device of network interfaces, for its kind.
func TunInContainer(kind string) []string {
	return of(kind, []setting{
		{Docker, "Docker: docker run --device " + TunDevice},
		{Podman, "Podman: podman run --device " + TunDevice},
		{Kubernetes, "Kubernetes: a device plugin that offers " + TunDevice + ", asked for in the container's resources"},
		{LXC, "LXC: lxc.mount.entry = " + TunDevice + " dev/net/tun none bind,create=file; Incus and LXD: a device of type unix-char"},
	})
}

// OpenFilesInContainer says what raises a container's limit of open files, for its kind.
func OpenFilesInContainer(kind string) []string {
	limit := strconv.Itoa(OpenFiles)
	return of(kind, []setting{
		{Docker, "Docker: docker run --ulimit nofile=" + limit},
		{Podman, "Podman: podman run --ulimit nofile=" + limit},
		{Kubernetes, "Kubernetes: LimitNOFILE= of the host's container runtime, of which containers have their limit"},
		{LXC, "LXC: lxc.prlimit.nofile = " + limit + "; Incus and LXD: limits.kernel.nofile"},
	})
}

// EngineProfile tells whether an AppArmor label, as /proc/self/attr/current has it, is that of an engine's own profile in force.
// Those of Docker, Podman and containerd forbid every mount, in namespaces of one's own too. Pure.
func EngineProfile(label string) bool {
	name, mode, _ := strings.Cut(strings.TrimRight(label, "\n\x00"), " ")
	known := name == "docker-default" || name == "cri-containerd.apparmor.d" || strings.HasPrefix(name, "containers-default-")
	return known && mode == "(enforce)"
}

// NoAppArmor says what takes AppArmor's profile from a container, for its kind.
func NoAppArmor(kind string) []string {
	return of(kind, []setting{
		{Docker, "Docker: docker run --security-opt apparmor=unconfined"},
		{Podman, "Podman: podman run --security-opt apparmor=unconfined"},
		{Kubernetes, "Kubernetes: securityContext.appArmorProfile: {type: Unconfined}"},
		{LXC, "LXC: lxc.apparmor.profile = unconfined; Incus and LXD: security.nesting=true"},
	})
}

// MoreIDs says what gives the user namespace of a container ids for an account and its subordinate ids, for its kind.
func MoreIDs(kind string) []string {
	return of(kind, []setting{
		{Docker, "Docker with userns-remap: a longer range of dockremap in the host's " + SubuidFile + " and " + SubgidFile},
		{Podman, "Podman: podman run --userns=auto:size=200000, or a longer range of the account that runs podman"},
		{Kubernetes, "Kubernetes: userNamespaces.idsPerPod: 131072 or more in the host's kubelet configuration"},
		{LXC, "LXC: longer ranges of lxc.idmap; Incus and LXD: security.idmap.size"},
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
