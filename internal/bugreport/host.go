package bugreport

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
)

type unixStat = syscall.Stat_t

// cgroup describes the node's cgroup subtree, with its processes, and the delegation on this host.
func cgroup(ctx context.Context, in *Input) ([]file, error) {
	var b strings.Builder
	host, err := cgroupv2.DetectHost(cgroupv2.Options{})
	errs := []error{err}
	b.WriteString("host: " + jsonText(host))
	delegation, err := cgroupv2.Detect(host, cgroupv2.Options{})
	errs = append(errs, err)
	b.WriteString("delegation: " + jsonText(delegation))
	dir := filepath.Join(delegation.Root, layout.Cgroup(in.Name))
	if text, err := os.ReadFile(in.Runtime.CgroupFile()); err == nil {
		dir = strings.TrimSpace(string(text))
	}
	fmt.Fprintf(&b, "node: %s\n", dir)
	if err := cgroupv2.Dump(ctx, dir, &b); errors.Is(err, fs.ErrNotExist) {
		b.WriteString("the node has no cgroup\n")
	} else {
		errs = append(errs, err)
	}
	return []file{{"cgroup.txt", b.String()}}, errors.Join(errs...)
}

// childPID returns the pid of process 1 of the node, or 0 if there is none.
func childPID(in *Input) int {
	var h layout.HandoverInfo
	if layout.ReadJSON(in.Runtime.Handover(), &h) != nil || !proc.Exists(h.ChildPID) {
		return 0
	}
	return h.ChildPID
}

// procFiles copies files of /proc of this process to host, and of the node's process 1 to node.
func procFiles(in *Input, dir string, names ...string) ([]file, error) {
	var files []file
	var errs []error
	where := map[string]int{"host": os.Getpid()}
	if pid := childPID(in); pid > 0 {
		where["node"] = pid
	}
	for _, side := range []string{"host", "node"} {
		pid, ok := where[side]
		if !ok {
			continue
		}
		for _, name := range names {
			text, err := os.ReadFile(proc.Host.File(pid, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue // IPv6 may be disabled
			}
			files, errs = append(files, file{dir + "/" + side + "-" + filepath.Base(name) + ".txt", string(text)}), append(errs, err)
		}
	}
	return files, errors.Join(errs...)
}

func mounts(_ context.Context, in *Input) ([]file, error) {
	return procFiles(in, "mounts", "mountinfo")
}

// network describes interfaces, routes and sockets of the host and of the node.
func network(_ context.Context, in *Input) ([]file, error) {
	files, err := procFiles(in, "network", "net/route", "net/ipv6_route", "net/if_inet6", "net/dev", "net/tcp", "net/tcp6", "net/udp", "net/udp6", "net/unix", "net/fib_trie")
	var b strings.Builder
	interfaces, ierr := net.Interfaces()
	for _, i := range interfaces {
		addresses, _ := i.Addrs() // the interface may have been removed meanwhile
		fmt.Fprintf(&b, "%s: index %d, MTU %d, %s, %v\n", i.Name, i.Index, i.MTU, i.Flags, addresses)
	}
	resolver, rerr := os.ReadFile("/etc/resolv.conf")
	fmt.Fprintf(&b, "\n== /etc/resolv.conf\n%s", resolver)
	return append(files, file{"network/host-interfaces.txt", b.String()}), errors.Join(err, ierr, rerr)
}

// kernelFiles are files with facts about the kernel and the system. Those that do not exist are skipped. A pattern may match several.
var kernelFiles = []string{
	"/etc/os-release", "/proc/version", "/proc/cmdline", "/proc/uptime", "/proc/loadavg", "/proc/meminfo", "/proc/self/limits", "/proc/filesystems", "/proc/modules",
	"/proc/pressure/*", "/proc/key-users", "/proc/cgroups", "/sys/kernel/security/lsm",
	"/proc/sys/user/max_*", "/proc/sys/kernel/keys/*", "/proc/sys/kernel/unprivileged_userns_clone", "/proc/sys/kernel/apparmor_restrict_unprivileged_userns*",
	"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max", "/proc/sys/kernel/osrelease", "/proc/sys/kernel/yama/ptrace_scope", "/proc/sys/kernel/dmesg_restrict",
	"/proc/sys/fs/inotify/*", "/proc/sys/fs/file-max", "/proc/sys/fs/nr_open", "/proc/sys/fs/file-nr", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/max_map_count",
	"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/ip_unprivileged_port_start", "/proc/sys/net/ipv4/ip_local_port_range", "/proc/sys/net/ipv4/ping_group_range",
	"/proc/sys/net/ipv6/conf/all/disable_ipv6", "/proc/sys/net/core/somaxconn", "/proc/sys/net/netfilter/nf_conntrack_max",
}

func kernel(_ context.Context, _ *Input) ([]file, error) {
	var b strings.Builder
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		fmt.Fprintf(&b, "uname: %s %s %s\n", unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Version[:]), unix.ByteSliceToString(u.Machine[:]))
	}
	fmt.Fprintf(&b, "container: %s\n", hostinfo.DetectContainer("/"))
	for _, pattern := range kernelFiles {
		paths, _ := filepath.Glob(pattern) // the patterns are valid
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				text = []byte(err.Error())
			}
			fmt.Fprintf(&b, "\n== %s\n%s\n", path, strings.TrimRight(string(text), "\n"))
		}
	}
	return []file{{"kernel.txt", b.String()}}, nil
}

// account describes the account: ids, subordinate ids and limits, and its environment. Of most variables only the names are in the report.
func account(_ context.Context, in *Input) ([]file, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "uid %d, gid %d, groups ", os.Getuid(), os.Getgid())
	groups, err := os.Getgroups()
	fmt.Fprintf(&b, "%v\nhome %s\n", groups, in.Home)
	self := hostinfo.Account{UID: os.Getuid()}
	if u, lookup := user.Current(); lookup == nil {
		self.Name = u.Username
	}
	errs := []error{err}
	for _, path := range []string{hostinfo.SubuidFile, hostinfo.SubgidFile} {
		rows, bad, err := hostinfo.ReadSubids("/", path)
		errs = append(errs, err)
		fmt.Fprintf(&b, "\n== %s: %d rows, %d invalid rows\n", path, len(rows), len(bad))
		for _, r := range rows {
			if r.BelongsTo(self) {
				b.WriteString(r.String() + "\n")
			}
		}
		for _, r := range bad {
			if r.BelongsTo(self) {
				b.WriteString("invalid: " + r.String() + "\n")
			}
		}
	}
	b.WriteString("\n== environment\n")
	env := slices.Sorted(slices.Values(in.Env))
	for _, kv := range env {
		key, value, _ := strings.Cut(kv, "=")
		if !slices.Contains(plainVariables, strings.ToUpper(key)) {
			value = "(set)"
		}
		b.WriteString(key + "=" + value + "\n")
	}
	return []file{{"account.txt", b.String()}}, errors.Join(errs...)
}

// plainVariables are the variables of the environment whose values are in a report. Passwords of proxies are removed from them.
var plainVariables = []string{
	"HOME", "LANG", "LOGNAME", "NO_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "PATH", "SHELL", "TERM", "TMPDIR", "USER",
	"XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_SESSION_ID", "DBUS_SESSION_BUS_ADDRESS", layout.EnvName,
}
