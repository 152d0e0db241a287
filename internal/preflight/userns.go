package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// minUserNamespaces is the limit below which a node with pods of hostUsers: false may run out of user namespaces. RootlessKit
// warns below it too.
const minUserNamespaces = 1024

func checkUserNamespaces(ctx context.Context, h *host) []Finding {
	if f, ok := userNSLimit(h); ok && f.Level == LevelFail {
		return []Finding{f}
	}
	if n, err := h.readInt("/proc/sys/kernel/unprivileged_userns_clone"); err == nil && n == 0 {
		f := fail("kernel.unprivileged_userns_clone is 0: this kernel does not let ordinary users create user namespaces").hint(
			setSysctl("kernel.unprivileged_userns_clone", 1)...)
		f.fix.setup = true
		return []Finding{f}
	}
	if f, ok := appArmor(h); ok {
		return []Finding{f}
	}
	if err := h.probes.CloneUserNS(ctx); err != nil {
		return []Finding{explainClone(h, err)}
	}
	if f, ok := userNSLimit(h); ok {
		return []Finding{f}
	}
	return []Finding{pass("user namespaces can be created")}
}

func userNSLimit(h *host) (Finding, bool) {
	const file = "/proc/sys/user/max_user_namespaces"
	n, err := h.readInt(file)
	if err != nil || n >= minUserNamespaces {
		return Finding{}, false
	}
	f := warn("user.max_user_namespaces is %d: this is low: pods with their own user namespace may fail", n)
	if n == 0 {
		f = fail("user.max_user_namespaces is 0: no user namespace can be created (clone returns ENOSPC)")
	}
	f.fix.add(setSysctl("user.max_user_namespaces", hostinfo.UserNamespaces)...)
	f.fix.setup = true
	return f.with(map[string]string{"user.max_user_namespaces": strconv.FormatInt(n, 10)}), true
}

// appArmor checks for Ubuntu's restriction of user namespaces and for a profile that exempts this executable. attr/current
// contains the name of the profile; "unconfined" without a name means that there is none.
func appArmor(h *host) (Finding, bool) {
	n, err := h.readInt(hostinfo.AppArmorSysctl)
	if err != nil || n != 1 {
		return Finding{}, false
	}
	for _, file := range []string{"/proc/self/attr/apparmor/current", "/proc/self/attr/current"} {
		b, err := os.ReadFile(h.path(file))
		if label := strings.TrimRight(string(b), "\n\x00"); err == nil && label != "" && label != "unconfined" {
			return Finding{}, false
		}
	}
	if h.in.Exe == "" {
		return fail("kernel.apparmor_restrict_unprivileged_userns is 1 and no AppArmor profile lets this program create user namespaces"), true
	}
	path, text, err := hostinfo.AppArmorProfile(h.in.Exe)
	f := fail("kernel.apparmor_restrict_unprivileged_userns is 1 and no AppArmor profile lets %s create user namespaces", h.in.Exe)
	if err == nil {
		err = h.probes.RootOnly(h.in.Exe)
	}
	if err != nil { // a profile would also apply to a program that replaces this one
		return f.hint("# " + err.Error() + ": install below /usr/local first (make install), and start the node from there"), true
	}
	f.fix.add("cat <<'" + hereEnd + "' | " + sudoMark + "tee " + path + " >/dev/null")
	f.fix.add(strings.Split(strings.TrimSuffix(text, "\n"), "\n")...)
	f.fix.add(hereEnd, asRoot("systemctl restart apparmor"))
	f.fix.setup = true
	return f.with(map[string]string{"exe": h.in.Exe, "profile": path}), true
}

// noSeccomp returns how to start the container without a seccomp filter.
func noSeccomp(h *host) []string {
	return hostinfo.OuterSettings(hostinfo.NoSeccomp(h.container()))
}

// explainClone returns the finding for a failed clone(2) if the sysctls are not the cause (clone(2), user_namespaces(7)).
func explainClone(h *host, err error) Finding {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return fail("no further user namespace can be created: nested too deep, or user.max_user_namespaces is used up").hint(
			setSysctl("user.max_user_namespaces", hostinfo.UserNamespaces)...)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return fail("the kernel has no user namespaces (CONFIG_USER_NS)")
	case errors.Is(err, unix.EPERM) && h.proc().SelfStatus("Seccomp") == "2":
		return fail("a seccomp filter forbids creating user namespaces: this is a container or a sandbox").hint(noSeccomp(h)...)
	case errors.Is(err, unix.EPERM):
		return fail("creating a user namespace is not permitted, as in a chroot: the root directory is not the root of the mount namespace").hint(
			"# you are in a chroot: start outside of it, or enter the tree with pivot_root (unshare, systemd-nspawn), not with chroot")
	case errors.Is(err, unix.EACCES):
		return fail("a security module forbids creating a user namespace: %v", err).hint(
			"# the kernel's log names the module and the rule: " + asRoot("dmesg | tail -20"))
	}
	return fail("create a user namespace: %v", err)
}

// minorVersion is a major and a minor version number.
type minorVersion [2]int

func (v minorVersion) String() string { return fmt.Sprintf("%d.%d", v[0], v[1]) }

// minKernel returns the oldest kernel that KEP-2033 supports.
func minKernel() minorVersion { return minorVersion{4, 15} }

// overlayKernel returns the first kernel that allows overlayfs mounts in a user namespace.
func overlayKernel() minorVersion { return minorVersion{5, 11} }

func checkKernel(_ context.Context, h *host) []Finding {
	b, err := os.ReadFile(h.path("/proc/sys/kernel/osrelease"))
	if err != nil {
		return unreadable(err)
	}
	release := strings.TrimSpace(string(b))
	v, ok := parseRelease(release)
	details := map[string]string{"kernel": release}
	snapshotter := h.cfg.Containerd.Snapshotter
	switch {
	case !ok:
		return []Finding{warn("kernel %s: cannot parse the version", release).with(details)}
	case older(v, minKernel()):
		return []Finding{fail("kernel %s is older than %s", release, minKernel()).with(details)}
	case h.cfg.Network.IPv6 && !h.exists("/proc/sys/net/ipv6"):
		return []Finding{fail("kernel %s has no IPv6 (network.ipv6)", release).with(details).
			hint("# start the host without ipv6.disable=1, or set network.ipv6: false")}
	case older(v, overlayKernel()) && snapshotter == "overlayfs":
		return []Finding{fail("kernel %s cannot mount overlayfs in a user namespace (since %s)", release, overlayKernel()).
			with(details).hint("# let the node choose: containerd.snapshotter: auto")}
	case older(v, overlayKernel()) && snapshotter == "auto":
		f := warn("kernel %s cannot mount overlayfs in a user namespace (since %s): the node uses fuse-overlayfs or plain copies instead",
			release, overlayKernel()).with(details)
		if h.lookPath("fuse-overlayfs") == "" {
			f.fix.programs = []string{"fuse-overlayfs"}
		}
		return []Finding{f}
	}
	return []Finding{pass("kernel %s", release).with(details)}
}

func parseRelease(s string) (v minorVersion, ok bool) {
	major, rest, _ := strings.Cut(s, ".")
	minor := rest
	if i := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		minor = rest[:i]
	}
	var err1, err2 error
	v[0], err1 = strconv.Atoi(major)
	v[1], err2 = strconv.Atoi(minor)
	return v, err1 == nil && err2 == nil
}

func older(v, than minorVersion) bool { return v[0] < than[0] || v[0] == than[0] && v[1] < than[1] }

// checkModules checks for modules that the kernel has but has not loaded. The kernel loads some of them at first use, but for
// others a user namespace gets an error. It is a failure if no packet filter is available.
func checkModules(_ context.Context, h *host) []Finding {
	missing := hostinfo.UnloadedModules(h.path("/"), hostinfo.LoadableModules(h.path("/")))
	if len(missing) == 0 {
		return []Finding{pass("kernel modules are loaded or built in")}
	}
	lacks := func(names ...string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(missing, n) })
	}
	f := warn("kernel modules are not loaded, and a user namespace may not be able to load them: %s", strings.Join(missing, " "))
	if nft, ipt := !lacks("nf_tables"), !lacks("ip_tables", "iptable_nat", "br_netfilter"); !nft && !ipt {
		f = fail("kernel modules are not loaded, so neither nftables nor iptables can be used: %s", strings.Join(missing, " "))
	}
	f.fix.add(loadModules(missing...)...)
	f.fix.setup = true
	return []Finding{f.with(map[string]string{"missing": strings.Join(missing, " ")})}
}
