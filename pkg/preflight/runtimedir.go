package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/internal/hostinfo"
)

const envRuntimeDir = "XDG_RUNTIME_DIR"

// ResolveRuntimeDir finds the account's runtime directory: XDG_RUNTIME_DIR of env if it is an absolute directory of our
// own, else /run/user/UID if that is ours with mode 0700. In the second case the warning, a finding of check
// runtime-dir, says so and why; it is the zero Finding in the first. With neither, the error is an errdefs.ErrPreflight
// with a hint. There is no silent fall to /tmp, which is aged. Root is put before /run/user.
func ResolveRuntimeDir(env []string, uid int, root string) (dir string, warning Finding, err error) {
	set := getenv(env, envRuntimeDir)
	reason := envRuntimeDir + " is not set"
	if set != "" {
		reason = badRuntimeDir(set, uid)
		if reason == "" {
			return filepath.Clean(set), Finding{}, nil
		}
		reason = fmt.Sprintf("%s is %s, which %s", envRuntimeDir, set, reason)
	}
	usual := filepath.Join(root, hostinfo.UserRuntimeDirs, strconv.Itoa(uid))
	fault := badRuntimeDir(usual, uid)
	if fault == "" {
		w := warn("%s; using %s", reason, usual)
		w.Check = "runtime-dir"
		w.Hint = "export " + envRuntimeDir + "=" + usual
		w.fix.add(w.Hint)
		w.Details = map[string]string{"set": set, "used": usual}
		return usual, w, nil
	}
	err = fmt.Errorf("runtime directory: %s, and %s %s", reason, usual, fault)
	return "", Finding{}, errdefs.Class(errdefs.ErrPreflight, errdefs.WithHint(err, runtimeDirHint(root, uid)))
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

func runtimeDirHint(root string, uid int) string {
	id := strconv.Itoa(uid)
	if _, err := os.Stat(filepath.Join(root, hostinfo.SystemdBooted)); err == nil {
		return "# log in by ssh or `machinectl shell USER@`, not by su or sudo, or keep a user manager running:\n" +
			"sudo loginctl enable-linger $(id -un " + id + ")\n" +
			"export " + envRuntimeDir + "=" + hostinfo.UserRuntimeDirs + "/" + id
	}
	return "# as root:\n" +
		"install -d -m 0755 " + hostinfo.UserRuntimeDirs + "\n" +
		"install -d -m 0700 -o " + id + " -g $(id -g " + id + ") " + hostinfo.UserRuntimeDirs + "/" + id + "\n" +
		"# then, as the user:\n" +
		"export " + envRuntimeDir + "=" + hostinfo.UserRuntimeDirs + "/" + id
}

func checkRuntimeDir(_ context.Context, h *host) []Finding {
	dir, warning, err := ResolveRuntimeDir(h.in.Env, h.in.UID, h.in.Root)
	if err != nil {
		f := fail("%v", err)
		if r := errdefs.ReportOf(err); len(r.Hints) > 0 {
			f.fix = fixFromBlock(r.Hints[0])
		}
		f.fix.setup = true
		return []Finding{f}
	}
	if warning.Check != "" {
		return []Finding{warning}
	}
	return []Finding{pass("runtime directory %s", dir)}
}

func checkLinger(_ context.Context, h *host) []Finding {
	if !h.exists(hostinfo.SystemdBooted) {
		return []Finding{pass("not needed: no logind on this host")}
	}
	a, ok, err := h.account()
	if err != nil || !ok {
		return []Finding{warn("not checked: the account is unknown")}
	}
	if h.exists(filepath.Join(hostinfo.LingerDir, a.Name)) {
		return []Finding{pass("linger is enabled: the node outlives the login")}
	}
	f := warn("linger is not enabled: logind ends the node with %s's last session", a.Name).hint(asRoot("loginctl enable-linger " + a.Name))
	f.fix.setup = true
	return []Finding{f}
}
