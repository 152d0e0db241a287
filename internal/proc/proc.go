// Package proc reads the proc file system and signals processes of which only the process ID is known.
//
// Runs in: any process. All functions may be called concurrently.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// FS is the directory where a proc file system is mounted. Its methods for processes use the process IDs of that proc file system.
type FS string

// Host is the usual mount point.
const Host FS = "/proc"

// File returns the path of a file or directory of a process.
func (f FS) File(pid int, name string) string {
	return filepath.Join(string(f), strconv.Itoa(pid), name)
}

// PIDs returns the IDs of all visible processes. If an error occurs, the list may be incomplete.
func (f FS) PIDs() ([]int, error) {
	dir, err := os.Open(string(f))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// Stats iterates over all visible processes. It skips those that have ended. If the directory cannot be read, there are none.
func (f FS) Stats() iter.Seq[Stat] {
	return func(yield func(Stat) bool) {
		pids, _ := f.PIDs()
		for _, pid := range pids {
			if s, err := f.Stat(pid); err == nil && !yield(s) {
				return
			}
		}
	}
}

// Stat returns the state of a process. The error is fs.ErrNotExist or unix.ESRCH if there is no such process.
func (f FS) Stat(pid int) (Stat, error) { return readStat(f.File(pid, "stat")) }

// Openers returns the IDs of the processes that have the file at path open, except those whose open files the caller may not see.
func (f FS) Openers(path string) []int {
	want, err := os.Stat(path)
	if err != nil {
		return nil
	}
	pids, _ := f.PIDs() // a partial list is useful, too
	return slices.DeleteFunc(pids, func(pid int) bool { return !f.opens(pid, want) })
}

func (f FS) opens(pid int, want fs.FileInfo) bool {
	dir := f.File(pid, "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		st, err := os.Stat(filepath.Join(dir, e.Name()))
		return err == nil && os.SameFile(st, want)
	})
}

// Self returns the state of the calling process.
func (f FS) Self() (Stat, error) { return readStat(filepath.Join(string(f), "self/stat")) }

func readStat(path string) (Stat, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Stat{}, err
	}
	s, ok := parseStat(b)
	if !ok {
		return Stat{}, fmt.Errorf("%s: malformed", path)
	}
	return s, nil
}

// Name returns the name of a process in the kernel, at most 15 bytes.
func (f FS) Name(pid int) (string, error) {
	b, err := os.ReadFile(f.File(pid, "comm"))
	return strings.TrimSuffix(string(b), "\n"), err
}

// Args returns the command line of a process (/proc/PID/cmdline of proc_pid_cmdline(5)), and an error if it is empty, as it is for a
// zombie.
func (f FS) Args(pid int) ([]string, error) {
	path := f.File(pid, "cmdline")
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(b) == 0 {
		return nil, fmt.Errorf("%s is empty", path)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"), nil
}

// SelfStatus returns the value of a line of /proc/self/status (proc_pid_status(5)), or "" if the line is missing.
func (f FS) SelfStatus(key string) string {
	b, _ := os.ReadFile(filepath.Join(string(f), "self/status"))
	for line := range bytes.Lines(b) {
		if v, ok := strings.CutPrefix(string(line), key+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// Stat is a part of /proc/PID/stat (proc_pid_stat(5)).
type Stat struct {
	PID int
	// Name is the name of the process in the kernel, at most 15 bytes.
	Name string
	// State is a letter. Z and X are ended processes.
	State byte
	// Parent, Group, Session and TTY are IDs. TTY is 0 without a controlling terminal.
	Parent, Group, Session, TTY int
	// UserTicks and SystemTicks are CPU time in hundredths of a second.
	UserTicks, SystemTicks uint64
	Threads                uint64
	// ResidentPages is resident memory in pages.
	ResidentPages uint64
}

// Alive reports whether the process has not ended. A zombie has ended.
func (s Stat) Alive() bool { return s.State != 'Z' && s.State != 'X' && s.State != 'x' }

// parseStat reads the content of /proc/PID/stat. The name is in parentheses and may contain any character, also parentheses.
func parseStat(b []byte) (s Stat, ok bool) {
	start, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if start < 0 || end < start {
		return Stat{}, false
	}
	fields := bytes.Fields(b[end+1:])
	const first, last = 3, 24 // the numbers of the fields in the manual page
	if len(fields) <= last-first || len(fields[0]) != 1 {
		return Stat{}, false
	}
	id := func(text []byte) int {
		n, err := strconv.Atoi(string(text))
		ok = ok && err == nil
		return n
	}
	count := func(field int) uint64 {
		n, _ := strconv.ParseUint(string(fields[field-first]), 10, 64) // 0 for a negative number
		return n
	}
	ok = true
	s = Stat{
		PID: id(bytes.TrimSpace(b[:start])), Name: string(b[start+1 : end]), State: fields[0][0],
		Parent: id(fields[4-first]), Group: id(fields[5-first]), Session: id(fields[6-first]), TTY: id(fields[7-first]),
		UserTicks: count(14), SystemTicks: count(15), Threads: count(20), ResidentPages: count(24),
	}
	return s, ok
}

// Exists reports whether there is a process, or zombie, with this ID.
func Exists(pid int) bool { return !errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

// Ended reports whether err from a file of a process means that the process has ended.
func Ended(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// FDPath returns the path of an open file in /proc. It names the file itself, independent of renames, links and mounts on top.
func FDPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
