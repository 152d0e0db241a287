package nodeexec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// StartError is the error for a program that could not be started. Run returns it with the exit code that a shell would use.
type StartError struct {
	// Code is ExitNotFound, ExitNotExecutable or 1.
	Code int
	Text string
}

func (e *StartError) Error() string { return e.Text }

// mergeEnv returns base with the variables of over added or replaced. Within a list, the last value of a key wins.
func mergeEnv(base, over []string) []string {
	out := make([]string, 0, len(base)+len(over))
	at := make(map[string]int, len(base)+len(over))
	for _, list := range [][]string{base, over} {
		for _, kv := range list {
			k, _, ok := strings.Cut(kv, "=")
			if !ok || k == "" {
				continue
			}
			if i, seen := at[k]; seen {
				out[i] = kv
				continue
			}
			at[k] = len(out)
			out = append(out, kv)
		}
	}
	return out
}

func getenv(env []string, key string) string {
	for _, kv := range env {
		if k, v, _ := strings.Cut(kv, "="); k == key {
			return v
		}
	}
	return ""
}

// lookPath returns the path of file, searched like execvp(3) does. path is the PATH, and relative paths are relative to dir.
func lookPath(file, path, dir string) (string, error) {
	if strings.Contains(file, "/") {
		p := file
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}
		if err := executable(p, file); err != nil {
			return "", err
		}
		return p, nil
	}
	var denied error
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		p := filepath.Join(d, file)
		if _, err := os.Stat(p); err != nil {
			continue // not found, or the directory is not accessible
		}
		err := executable(p, file)
		if err == nil {
			return p, nil
		}
		if denied == nil && err.Code == ExitNotExecutable {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", &StartError{ExitNotFound, fmt.Sprintf("%s: not found in the node's PATH (%s)", file, path)}
}

func executable(path, name string) *StartError {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return &StartError{ExitNotFound, name + ": not found inside the node"}
	case err != nil:
		return &StartError{ExitNotExecutable, fmt.Sprintf("%s: %v", name, err)}
	case st.IsDir():
		return &StartError{ExitNotExecutable, name + ": is a directory"}
	case unix.Access(path, unix.X_OK) != nil:
		return &StartError{ExitNotExecutable, name + ": not executable"}
	}
	return nil
}

// workDir returns the working directory for the program.
func workDir(req request, env []string) (string, error) {
	if req.Dir != "" {
		err := enterable(req.Dir)
		if err == nil {
			return req.Dir, nil
		}
		if !req.DirOptional {
			return "", &StartError{1, fmt.Sprintf("enter directory %s inside the node: %v", req.Dir, err)}
		}
	}
	if home := getenv(env, "HOME"); home != "" && enterable(home) == nil {
		return home, nil
	}
	return "/", nil
}

func enterable(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return errors.Unwrap(err)
	}
	if !st.IsDir() {
		return unix.ENOTDIR
	}
	return unix.Access(dir, unix.X_OK)
}
