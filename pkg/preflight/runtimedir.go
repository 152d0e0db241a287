package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

const envRuntimeDir = "XDG_RUNTIME_DIR"

// ResolveRuntimeDir finds the account's runtime directory: XDG_RUNTIME_DIR of env if it is an absolute directory of our
// own, else /run/user/UID if that is ours with mode 0700. In the second case the warning, a finding of check
// runtime-dir, says so and why; it is the zero Finding in the first. With neither, the error is an errdefs.ErrPreflight
// with a hint; for uid 0 it is that a node is not run by root. There is no silent fall to /tmp, which is aged. Root is
// put before /run/user.
func ResolveRuntimeDir(env []string, uid int, root string) (dir string, warning Finding, err error) {
	h := newHost(context.Background(), Input{Env: env, UID: uid, Root: root})
	dir, f := h.runtimeDir()
	if f.Level == LevelFail && uid == 0 {
		f = checkRoot(h) // the better answer: a directory would not help root
	}
	f = h.finish([]Finding{f})[0]
	switch f.Level {
	case LevelWarn:
		return dir, f, nil
	case LevelFail:
		return "", Finding{}, Err([]Finding{f})
	}
	return dir, Finding{}, nil
}

func (h *host) runtimeDir() (string, Finding) {
	const check = "runtime-dir"
	set, uid := h.env(envRuntimeDir), h.in.UID
	reason := envRuntimeDir + " is not set"
	if set != "" {
		reason = badRuntimeDir(set, uid)
		if reason == "" {
			f := pass("runtime directory %s", filepath.Clean(set))
			f.Check = check
			return filepath.Clean(set), f
		}
		reason = fmt.Sprintf("%s is %s, which %s", envRuntimeDir, set, reason)
	}
	usual := h.path(filepath.Join(hostinfo.UserRuntimeDirs, strconv.Itoa(uid)))
	fault := badRuntimeDir(usual, uid)
	if fault == "" {
		f := warn("%s; using %s", reason, usual).hint("export " + envRuntimeDir + "=" + usual).
			with(map[string]string{"set": set, "used": usual})
		f.Check = check
		return usual, f
	}
	f := fail("%s, and %s %s", reason, usual, fault)
	f.Check = check
	f.fix = h.runtimeDirFix(usual)
	return "", f
}

// badRuntimeDir says what keeps dir from being a runtime directory of uid, as a predicate; "" for nothing
// (XDG Base Directory Specification: owned by the user, who is the only one with access).
func badRuntimeDir(dir string, uid int) string {
	if !filepath.IsAbs(dir) {
		return "is not an absolute path"
	}
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "does not exist"
	case err != nil:
		return fmt.Sprintf("cannot be looked at: %v", errors.Unwrap(err))
	case !st.IsDir():
		return "is not a directory"
	}
	if owner := int(st.Sys().(*syscall.Stat_t).Uid); owner != uid {
		return fmt.Sprintf("belongs to uid %d, not to us (uid %d)", owner, uid)
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
		f.add("# log in by ssh or `machinectl shell "+user+"@`, not by su or sudo, or keep the user's manager running:",
			asRoot("loginctl enable-linger "+user))
	} else {
		f.add(asRoot("install -d -m 0755 "+filepath.Dir(usual)),
			asRoot("install -d -m 0700 -o "+id+" -g "+group+" "+usual))
	}
	f.add("export " + envRuntimeDir + "=" + usual)
	return f
}

func checkRuntimeDir(_ context.Context, h *host) []Finding {
	_, f := h.runtimeDir()
	return []Finding{f}
}

func checkLinger(_ context.Context, h *host) []Finding {
	dir, ends := hostinfo.LingerDir, "logind ends the node with %s's last session"
	if !h.exists(hostinfo.SystemdBooted) {
		if !hostinfo.Elogind(h.in.Root + "/") {
			return []Finding{pass("not needed: no logind on this host")}
		}
		dir, ends = hostinfo.ElogindLingerDir, "elogind removes the node's sockets with %s's last session"
	}
	a, ok, err := h.account()
	if err != nil || !ok {
		return []Finding{warn("not checked: the account is unknown")}
	}
	if h.exists(filepath.Join(dir, a.Name)) {
		return []Finding{pass("linger is enabled: the node outlives the login")}
	}
	f := warn("linger is not enabled: "+ends, a.Name).hint(asRoot("loginctl enable-linger " + a.Name))
	f.fix.setup = true
	return []Finding{f}
}
