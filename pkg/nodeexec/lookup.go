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

// StartError says why a program was not started. Run returns it with the exit code that a shell would give.
type StartError struct {
	// Code is ExitNotFound, ExitNotExecutable or 1.
	Code int
	Text string
}

func (e *StartError) Error() string { return e.Text }

// mergeEnv lays over over base: of two values for one key the later one stays, in the place of the first.
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

// lookPath finds file as execvp(3) does, with the given PATH, seen from dir.
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
			continue // nor is a directory that we may not enter one in which it was found
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

// workDir decides where the program starts.
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
