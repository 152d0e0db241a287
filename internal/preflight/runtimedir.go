package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

const envRuntimeDir = "XDG_RUNTIME_DIR"

// ResolveRuntimeDir returns the account's runtime directory: XDG_RUNTIME_DIR of env if it is an absolute path of a directory
// that the account owns with mode 0700, or else /run/user/UID if that directory is suitable. In the second case warning is a
// finding of check runtime-dir with the reason; otherwise it is the zero Finding. If neither is suitable, it returns an
// errdefs.ErrPreflight with a hint, and for uid 0 the error that root must not run a node. It does not fall back to /tmp, whose
// files may be removed by age. root is prepended to /run/user.
func ResolveRuntimeDir(env []string, uid int, root string) (dir string, warning Finding, err error) {
	h := newHost(context.Background(), Input{Env: env, UID: uid, Root: root})
	dir, f := h.runtimeDir()
	check, _ := Explain("runtime-dir")
	if f.Level == LevelFail && uid == 0 {
		f, check = checkRoot(h), checks()[0] // more helpful: a directory would not help root
	}
	f = h.finish(check.name([]Finding{f}))[0]
	switch f.Level {
	case LevelWarn:
		return dir, f, nil
	case LevelFail:
		return "", Finding{}, Err([]Finding{f})
	}
	return dir, Finding{}, nil
}

func (h *host) runtimeDir() (string, Finding) {
	set, uid := h.env(envRuntimeDir), h.in.UID
	reason := envRuntimeDir + " is not set"
	if set != "" {
		reason = badRuntimeDir(set, uid)
		if reason == "" {
			return filepath.Clean(set), pass("runtime directory %s", filepath.Clean(set))
		}
		reason = fmt.Sprintf("%s is %s, which %s", envRuntimeDir, set, reason)
	}
	usual := h.path(filepath.Join(hostinfo.UserRuntimeDirs, strconv.Itoa(uid)))
	fault := badRuntimeDir(usual, uid)
	if fault == "" {
		f := warn("%s; using %s", reason, usual).hint("export " + envRuntimeDir + "=" + usual).
			with(map[string]string{"set": set, "used": usual})
		return usual, f
	}
	f := fail("%s, and %s %s", reason, usual, fault)
	f.fix = h.runtimeDirFix(usual)
	return "", f
}

// badRuntimeDir returns why dir is not suitable as a runtime directory of uid, as a predicate, or "" if it is (XDG Base Directory
// Specification: the user must own it and must be the only one with access).
func badRuntimeDir(dir string, uid int) string {
	if !filepath.IsAbs(dir) {
		return "is not an absolute path"
	}
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "does not exist"
	case err != nil:
		return fmt.Sprintf("cannot be accessed: %v", errors.Unwrap(err))
	case !st.IsDir():
		return "is not a directory"
	}
	if owner := int(st.Sys().(*syscall.Stat_t).Uid); owner != uid {
		return fmt.Sprintf("belongs to uid %d, not to this account (uid %d)", owner, uid)
	}
	if st.Mode().Perm() != 0o700 {
		return fmt.Sprintf("has mode %04o, not 0700", st.Mode().Perm())
	}
	return ""
}

func (h *host) runtimeDirFix(usual string) fix {
	f := fix{setup: true}
	id := strconv.Itoa(h.in.UID)
	user, group := id, id
	if a, ok, _ := h.account(); ok {
		user, group = a.Name, strconv.Itoa(a.GID)
	}
	if h.exists(hostinfo.SystemdBooted) {
		f.add("# log in with ssh or machinectl shell "+hostinfo.Quote(user+"@")+", not with su or sudo, or keep the user manager running:",
			asRoot("loginctl enable-linger "+hostinfo.Quote(user)))
	} else {
		f.add(asRoot("install -d -m 0755 "+filepath.Dir(usual)),
			asRoot("install -d -m 0700 -o "+id+" -g "+group+" "+usual))
	}
	f.add("export " + envRuntimeDir + "=" + usual)
	return f
}

func checkRuntimeDir(_ context.Context, h *host) []Finding {
	dir, f := h.runtimeDir()
	if f.Level == LevelFail {
		return []Finding{f}
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil { // a read-only mount
		return []Finding{fail("runtime directory %s cannot be written: %v", dir, err).hint("# use another one: export " + envRuntimeDir + "=DIR")}
	}
	if fs, err := h.probes.Statfs(dir); err == nil && fs.Available < runtimeSpace {
		return []Finding{fail("%d KiB free in runtime directory %s, but a node needs %d", fs.Available>>10, dir, runtimeSpace>>10).hint(
			"# remove files that are not needed:", "du -sh "+hostinfo.Quote(dir))}
	}
	return []Finding{f}
}

// runtimeSpace is the space that the files of a run need in the runtime directory.
const runtimeSpace = 32 << 10

func checkLinger(_ context.Context, h *host) []Finding {
	dir, ends := hostinfo.LingerDir, "logind stops the node when %s's last session ends"
	if !h.exists(hostinfo.SystemdBooted) {
		if !hostinfo.Elogind(h.in.Root + "/") {
			return []Finding{pass("not needed: no logind on this host")}
		}
		dir, ends = hostinfo.ElogindLingerDir, "elogind removes the node's sockets when %s's last session ends"
	}
	a, ok, err := h.account()
	if err != nil || !ok {
		return []Finding{warn("not checked: the account is unknown")}
	}
	if h.exists(filepath.Join(dir, hostinfo.LingerFile(a.Name))) {
		return []Finding{pass("linger is enabled: the node keeps running after logout")}
	}
	f := warn("linger is not enabled: "+ends, a.Name).hint(asRoot("loginctl enable-linger " + hostinfo.Quote(a.Name)))
	f.fix.setup = true
	return []Finding{f}
}
