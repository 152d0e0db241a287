// Package kubeconfig adds a node's context, cluster and user to the kubeconfig of its account and removes them again.
//
// Other entries, comments and the format of the file are kept byte by byte, because the package edits the text at the positions that
// the YAML parser reports, and does not encode the file again as clientcmd does. It uses the same lock as clientcmd, so that kubectl and
// a node do not overwrite each other's changes. Every edit is checked: if the file would mean something else apart from the node's
// entries, it is not written.
//
// Runs in: parent.
package kubeconfig

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Entry is the access to one cluster. The entry refers to files for the certificates, so that it stays valid when they are renewed, and
// so that the kubeconfig contains no secret.
type Entry struct {
	// Name is the name of the context, the cluster and the user.
	Name string
	// Server is the URL of the API server.
	Server string
	// CAFile, CertFile and KeyFile are absolute paths.
	CAFile, CertFile, KeyFile string
}

// Files are the kubeconfig files of an account.
type Files struct {
	// Paths are the files that kubectl reads, in its order. See Paths.
	Paths []string
	// Records is the directory for what Merge records about the files that it changes.
	Records string
	// Skip reports whether a file is never changed. Optional.
	Skip func(path string) bool
}

// Paths returns the files that kubectl reads with the given value of KUBECONFIG: those in the list, or ~/.kube/config.
//
// Errors: KUBECONFIG is empty and home is not known.
func Paths(kubeconfig, home string) ([]string, error) {
	var paths []string
	for _, p := range filepath.SplitList(kubeconfig) {
		if p == "" {
			continue
		}
		p, err := filepath.Abs(p)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(paths, p) {
			paths = append(paths, p)
		}
	}
	if len(paths) > 0 {
		return paths, nil
	}
	if !filepath.IsAbs(home) {
		return nil, errdefs.Errorf("find the kubeconfig: HOME is not set").Hint("set HOME or KUBECONFIG")
	}
	return []string{filepath.Join(home, ".kube", "config")}, nil
}

// Merge adds e to the file that already has it, or otherwise to the file that kubectl would write to, and returns the path. The context
// becomes the current one if the files have none. The path is empty if all files are skipped. Merge does not write a file that is up
// to date. Data of the user in the entries of e, such as the namespace of the context, is kept.
//
// Errors: the file cannot be read, parsed or written, or has entries with the same names that belong to another cluster. The file is
// then unchanged.
func (f Files) Merge(e Entry) (path string, err error) {
	path = f.target(e.Name)
	if path == "" {
		return "", nil
	}
	made, err := makeDir(filepath.Dir(path))
	if err != nil {
		return path, failed(path, err)
	}
	unlock, err := lock(path)
	if err != nil {
		return path, failed(path, err)
	}
	defer unlock()
	err = f.mergeInto(path, e, made)
	return path, failed(path, err)
}

func (f Files) mergeInto(path string, e Entry, madeDir bool) error {
	text, real, err := read(path)
	exists := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	rec, err := f.load(path, text)
	if err != nil {
		return err
	}
	if rec == nil {
		rec = &record{Path: path, Created: !exists, MadeDir: madeDir}
	}
	edited := &edit{text: text, forms: rec.Forms}
	if !slices.Contains(rec.Names, e.Name) {
		if err := edited.checkForeign(e); err != nil {
			return err
		}
	}
	if err := edited.merge(e, !f.hasCurrent(path)); err != nil {
		return err
	}
	if edited.original != nil {
		rec.Original = edited.original
	}
	if exists && string(edited.text) == string(text) && slices.Contains(rec.Names, e.Name) {
		return nil
	}
	rec.Forms = edited.forms
	rec.add(e.Name)
	if err := f.save(rec); err != nil {
		return err
	}
	return write(real, edited.text)
}

// Unmerge removes the entries called name from all files to which Merge has added them, and from the current ones if own reports that
// they belong to the node: it gets the path of the client certificate. A file that Merge created is removed if nothing else is in it.
// It returns the changed files.
//
// Errors: the files that cannot be changed, with the reasons.
func (f Files) Unmerge(name string, own func(certFile string) bool) (changed []string, err error) {
	recorded, err := f.recorded(name)
	for _, path := range recorded {
		done, unmergeErr := f.unmergeFrom(path, name, nil)
		if done {
			changed = append(changed, path)
		}
		err = errors.Join(err, failed(path, unmergeErr))
	}
	for _, path := range f.Paths {
		if slices.Contains(recorded, path) || f.skips(path) || !has(path, name) {
			continue
		}
		done, unmergeErr := f.unmergeFrom(path, name, own)
		if done {
			changed = append(changed, path)
		}
		err = errors.Join(err, failed(path, unmergeErr))
	}
	return changed, err
}

// unmergeFrom removes the entries from one file. With own, only if they belong to the node.
func (f Files) unmergeFrom(path, name string, own func(string) bool) (changed bool, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, f.drop(path, name) // the user has removed the file
	}
	unlock, err := lock(path)
	if err != nil {
		return false, err
	}
	emptied := ""
	defer func() {
		unlock()
		if emptied != "" {
			_ = os.Remove(emptied) // if it is empty
		}
	}()
	text, real, err := read(path)
	if err != nil {
		return false, err
	}
	rec, err := f.load(path, text)
	if err != nil {
		return false, err
	}
	rec = cmp.Or(rec, &record{Path: path})
	edited := &edit{text: text, forms: rec.Forms}
	if own != nil {
		if cert, err := edited.certFile(name); err != nil || !own(cert) {
			return false, err
		}
	}
	if err := edited.unmerge(name); err != nil {
		return false, err
	}
	rec.Names = slices.DeleteFunc(rec.Names, func(n string) bool { return n == name })
	if len(rec.Names) == 0 && (rec.Created || rec.Original != nil) && edited.isEmpty() {
		edited.text = []byte(deref(rec.Original))
		if rec.Created {
			if rec.MadeDir {
				emptied = filepath.Dir(path)
			}
			return true, errors.Join(os.Remove(real), f.save(rec))
		}
	}
	if string(edited.text) != string(text) {
		err = write(real, edited.text)
		changed = err == nil
	}
	if err == nil {
		err = f.save(rec)
	}
	return changed, err
}

// target returns the file for the entries called name, or "" if all files are skipped.
func (f Files) target(name string) string {
	paths := slices.DeleteFunc(slices.Clone(f.Paths), f.skips)
	for _, p := range paths {
		if has(p, name) {
			return p
		}
	}
	for _, p := range paths { // like clientcmd: the first file that exists, otherwise the last one
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	if len(paths) == 0 {
		return ""
	}
	return paths[len(paths)-1]
}

func (f Files) skips(path string) bool { return f.Skip != nil && f.Skip(path) }

// hasCurrent reports whether a file other than path sets the current context.
func (f Files) hasCurrent(path string) bool {
	return slices.ContainsFunc(f.Paths, func(p string) bool {
		text, _, err := read(p)
		return p != path && err == nil && (&edit{text: text}).current() != ""
	})
}

// has reports whether a file has entries called name. It returns false for an unreadable file.
func has(path, name string) bool {
	text, _, err := read(path)
	return err == nil && (&edit{text: text}).has(name)
}

// maxSize is the largest file that is read, in bytes. etcd's limit for an object is 1.5 MiB; a kubeconfig is far smaller.
const maxSize = 8 << 20

// read returns the content of the file, and its path without symbolic links. If the error is fs.ErrNotExist, real is the file to create.
func read(path string) (text []byte, real string, err error) {
	if real, err = resolve(path); err != nil {
		return nil, real, err
	}
	st, err := os.Stat(real)
	switch {
	case err != nil:
		return nil, real, err
	case !st.Mode().IsRegular():
		return nil, real, errors.New("not a regular file")
	case st.Size() > maxSize:
		return nil, real, fmt.Errorf("larger than %d MiB", maxSize>>20)
	}
	text, err = os.ReadFile(real)
	return text, real, err
}

// resolve follows the symbolic links of path. The target does not have to exist.
func resolve(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return real, err
	}
	const maxLinks = 40 // as the kernel
	for range maxLinks {
		target, err := os.Readlink(path)
		if err != nil {
			return path, nil
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
	}
	return path, unix.ELOOP
}

// write replaces the file, which keeps its permissions and its owner.
func write(real string, text []byte) error {
	if err := unix.Access(real, unix.W_OK); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // the rename would succeed, but the user does not want changes
	}
	return atomicfile.Options{Durable: true, Keep: true}.Write(real, text, 0o600)
}

// makeDir creates the directory of a kubeconfig, and reports whether it did not exist.
func makeDir(dir string) (made bool, err error) {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return false, nil // an error is reported when the file is opened
	}
	return true, os.MkdirAll(dir, 0o700)
}

// failed adds the path and, unless it has one, a hint to an error. It returns nil for nil.
func failed(path string, err error) error {
	if err == nil {
		return nil
	}
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = fmt.Errorf("%s: %w", pathErr.Path, pathErr.Err)
	} else {
		err = fmt.Errorf("%s: %w", path, err)
	}
	err = fmt.Errorf("change kubeconfig %w", err)
	if len(errdefs.ReportOf(err).Hints) > 0 {
		return err
	}
	return errdefs.WithSteps(err, errdefs.Text("# repair "+hostinfo.Quote(path)+", or select another file with KUBECONFIG; then:").
		Do(errdefs.MergeKubeconfig).Text("# or do not change it at all:").Do(errdefs.Start, "kubeconfigMerge=false"))
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
