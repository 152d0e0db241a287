package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// stamp records the inputs of an output. An output with a valid stamp is not built
// again.
type stamp struct {
	Key     string `json:"key"` // digest of its inputs
	Version string `json:"version"`
	// Programs are the versions of programs that differ from Version.
	Programs map[string]string `json:"programs,omitempty"`
	SHA256   string            `json:"sha256"`
	Size     int64             `json:"size"`
	// ModTime is used to detect an unchanged file without reading it.
	ModTime int64 `json:"modTime"`
}

func readStamp(path string) (stamp, error) {
	var s stamp
	data, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// holds reports whether output is still the file that was stamped.
func (s stamp) holds(output string) bool {
	info, err := os.Lstat(output)
	if err != nil || !info.Mode().IsRegular() || info.Size() != s.Size {
		return false
	}
	if info.ModTime().UnixNano() == s.ModTime {
		return true
	}
	// The file was copied or touched: compare the content.
	sum, err := sha256File(output)
	return err == nil && sum == s.SHA256
}

// newStamp returns a stamp for the file output.
func newStamp(key, version string, programs map[string]string, output string) (stamp, error) {
	sum, err := sha256File(output)
	if err != nil {
		return stamp{}, err
	}
	info, err := os.Stat(output)
	if err != nil {
		return stamp{}, err
	}
	return stamp{key, version, programs, sum, info.Size(), info.ModTime().UnixNano()}, nil
}

func sha256File(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// keyOf returns a digest of the inputs of an output: the command, the tools, the
// module's sources and the outputs that it needs. Of the files that pin versions it
// reads only modFile and its checksums. It does not read the sources of upstream
// modules, because the checksums contain their hashes.
func keyOf(parts []string, moduleDir, modFile string) (string, error) {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d %s\n", len(p), p)
	}
	err := filepath.WalkDir(moduleDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !isSource(d.Name(), modFile) {
			return err
		}
		sum, err := sha256File(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(moduleDir, path)
		fmt.Fprintf(h, "%q %s\n", relative, sum)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read sources: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func isSource(name, modFile string) bool {
	if strings.HasSuffix(name, "_test.go") {
		return false
	}
	switch filepath.Ext(name) {
	case ".go", ".c", ".h":
		return true
	case ".mod", ".sum":
		return strings.TrimSuffix(name, filepath.Ext(name)) == strings.TrimSuffix(modFile, ".mod")
	}
	return false
}

// writeFile replaces a file atomically. It does not change a file with the same
// content.
func writeFile(path string, data []byte) (err error) {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp.Name()))
		}
	}()
	_, err = temp.Write(data)
	if err = errors.Join(err, temp.Chmod(0o644), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}

// link creates the symbolic link path to name in the same directory.
func link(path, name string) error {
	if to, err := os.Readlink(path); err == nil && to == name {
		return nil
	}
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(name, temp); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
