package hostsetup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// sessionStep provides a runtime directory that outlives the account's sessions: with linger under systemd, by creating
// /run/user/UID elsewhere.
func sessionStep(p *Plan) (Step, error) {
	if p.env.systemd {
		return lingerStep(p), nil
	}
	e := p.env
	dirOf := func() (dir string, a hostinfo.Account, ok bool) {
		a, ok, err := e.account(context.Background())
		return filepath.Join(hostinfo.UserRuntimeDirs, strconv.Itoa(a.UID)), a, ok && err == nil
	}
	s := Step{
		Name: "runtime-dir", Title: "create the runtime directory of " + e.User,
		Why: "it contains sockets and locks of nodes; this host has no logind to create it",
		Needed: func() (bool, error) {
			dir, a, ok := dirOf()
			return !ok || !isRuntimeDir(e.path(dir), a.UID), nil
		},
		Do: func(context.Context) error {
			dir, a, ok := dirOf()
			if !ok {
				return fmt.Errorf("user %s does not exist", e.User)
			}
			if err := ensureRuntimeDir(e.path(dir), a); err != nil {
				return err
			}
			p.record.add("runtime-dir", entry{After: map[string]string{"dir": dir}})
			return nil
		},
		// os.Remove fails if the directory is not empty, because it may contain files of a node.
		Undo: func(context.Context) error {
			err := os.Remove(e.path(p.record.Steps["runtime-dir"].After["dir"]))
			if os.IsNotExist(err) {
				return nil
			}
			return err
		},
	}
	if dir, a, ok := dirOf(); ok {
		s.Commands = []string{
			"mkdir -p " + hostinfo.UserRuntimeDirs,
			fmt.Sprintf("install -d -m 0700 -o %d -g %d %s", a.UID, a.GID, dir),
		}
	} else {
		s.Commands = []string{fmt.Sprintf("install -d -m 0700 -o %[1]s -g $(id -g %[1]s) %[2]s/$(id -u %[1]s)", e.quoted(), hostinfo.UserRuntimeDirs)}
	}
	return s, nil
}

func isRuntimeDir(dir string, uid int) bool {
	st, err := os.Lstat(dir)
	return err == nil && st.IsDir() && st.Mode().Perm() == 0o700 && int(st.Sys().(*syscall.Stat_t).Uid) == uid
}

// ensureRuntimeDir creates dir, or sets its owner and mode. It fails for a symbolic link, because the account could point the link
// to any directory.
func ensureRuntimeDir(dir string, a hostinfo.Account) error {
	if isRuntimeDir(dir, a.UID) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	if st, err := os.Lstat(dir); err != nil || !st.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if err := os.Lchown(dir, a.UID, a.GID); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700)
}

func lingerStep(p *Plan) Step {
	e := p.env
	mark := filepath.Join(hostinfo.LingerDir, hostinfo.LingerFile(e.User))
	return Step{
		Name: "linger", Title: "enable linger for " + e.User, Why: "without it logind stops the account's processes when its last session ends",
		Commands: []string{"loginctl enable-linger " + e.quoted()},
		Needed:   func() (bool, error) { return !e.exists(mark), nil },
		Do: func(ctx context.Context) error {
			if err := e.Run(ctx, e.LookPath("loginctl"), "enable-linger", e.User); err != nil {
				return err
			}
			p.record.add("linger", entry{After: map[string]string{"user": e.User}})
			return nil
		},
		Undo: func(ctx context.Context) error { return e.Run(ctx, e.LookPath("loginctl"), "disable-linger", e.User) },
	}
}
