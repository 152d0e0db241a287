package cgroupv2

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup2"
	"golang.org/x/sys/unix"
)

// Files of a cgroup directory (cgroup-v2.rst, "Core Interface Files").
const (
	procsFile       = "cgroup.procs"
	threadsFile     = "cgroup.threads"
	controllersFile = "cgroup.controllers"
	subtreeFile     = "cgroup.subtree_control"
	typeFile        = "cgroup.type"
	eventsFile      = "cgroup.events"
	freezeFile      = "cgroup.freeze"
	killFile        = "cgroup.kill"
)

const (
	dirMode  = 0o755
	fileMode = 0o644
)

// readList returns the words of a file.
func readList(dir, file string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	return strings.Fields(string(b)), err
}

// readPids returns the processes directly in dir. 0 stands for a process outside the caller's pid namespace.
func readPids(dir string) ([]int, error) {
	words, err := readList(dir, procsFile)
	if err != nil {
		return nil, err
	}
	pids := make([]int, 0, len(words))
	for _, w := range words {
		pid, err := strconv.ParseUint(w, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, procsFile), err)
		}
		pids = append(pids, int(pid))
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// write writes value in one system call, as the interface files require, and never creates a file.
func write(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// movePid moves a process to dir. It returns ESRCH if the process has ended.
func movePid(dir string, pid int) error { return write(dir, procsFile, strconv.Itoa(pid)) }

// moveSelf moves the calling process with all its threads to dir. The kernel takes 0 as the writing process.
func moveSelf(dir string) error { return write(dir, procsFile, "0") }

// enable enables controllers for the children of dir, one by one, and returns the refused ones with the kernel's error. It
// skips controllers that are already enabled.
func enable(dir string, controllers []string) (refused map[string]string) {
	on, _ := readList(dir, subtreeFile)
	for _, c := range controllers {
		if slices.Contains(on, c) {
			continue
		}
		if err := write(dir, subtreeFile, "+"+c); err != nil {
			if refused == nil {
				refused = map[string]string{}
			}
			refused[c] = reason(err)
		}
	}
	return refused
}

// reason returns the text of the system error in err, without operation and path.
func reason(err error) string {
	var no unix.Errno
	if errors.As(err, &no) {
		return no.Error()
	}
	return err.Error()
}

// disableAll disables all controllers for the children of dir, as far as those allow it.
func disableAll(dir string) {
	on, _ := readList(dir, subtreeFile)
	for _, c := range on {
		_ = write(dir, subtreeFile, "-"+c)
	}
}

// isRoot reports whether dir is the root of the hierarchy, and not just of a cgroup namespace. Only the root has no
// cgroup.type.
func isRoot(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, typeFile))
	return errors.Is(err, os.ErrNotExist)
}

// checkDomain returns an error if the cgroup is not a domain, because others cannot contain processes and delegate memory
// and io.
func checkDomain(dir string) error {
	m, err := cgroup2.Load("/"+filepath.Base(dir), cgroup2.WithMountpoint(filepath.Dir(dir)))
	if err != nil {
		return err
	}
	t, err := m.GetType()
	if err != nil {
		return err
	}
	if t != cgroup2.Domain {
		return fmt.Errorf("cgroup.type of %s is %q, not \"domain\": it or a parent is threaded or holds processes", dir, t)
	}
	return nil
}

// notWritable returns the directory and files of a delegated cgroup that the effective user cannot write, of those that
// cgroup-v2.rst, "Model of Delegation", requires.
func notWritable(dir string) []string {
	var out []string
	for _, f := range []string{"", procsFile, subtreeFile} {
		p := filepath.Join(dir, f)
		if unix.Faccessat(unix.AT_FDCWD, p, unix.W_OK, unix.AT_EACCESS) != nil {
			out = append(out, p)
		}
	}
	return out
}

// isDelegated reports whether dir is a cgroup that is delegated to the effective user.
func isDelegated(dir string) bool { return len(notWritable(dir)) == 0 && !isRoot(dir) }

// subdirs returns the names of the child cgroups.
func subdirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

func ensureDir(dir string) error {
	err := os.Mkdir(dir, dirMode)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// lockDir locks a cgroup directory that several nodes of one account share. It uses flock(2), so that the lock ends with the
// process.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { _ = f.Close() }, nil
}
