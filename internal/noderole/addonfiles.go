package noderole

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
)

// addon is a set of objects of the user: a manifest file, or a directory with manifest files.
type addon struct {
	name  string
	path  string
	set   kubeapi.Set
	fault error // of its files
	// conflict is set if another addon has its name or one of its objects. It is then not applied.
	conflict error
	// digest identifies the content of its files.
	digest string
}

// maxManifest is the maximum size of a manifest file in bytes. The API server accepts less in one object.
const maxManifest = 16 << 20

// readAddons returns the addons in the paths of the config, sorted by name. Each entry of a directory is an addon; a file is one, too.
// unreadable are the paths that cannot be read, with the reason. A path in optional may be missing.
func readAddons(paths []string, optional string) (found []addon, unreadable map[string]error) {
	unreadable = map[string]error{}
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && path == optional:
		case err != nil:
			unreadable[path] = err
		case !info.IsDir():
			found = append(found, readAddon(path))
		default:
			entries, err := os.ReadDir(path)
			if err != nil {
				unreadable[path] = err
			}
			for _, e := range entries {
				if at := filepath.Join(path, e.Name()); isAddon(at) {
					found = append(found, readAddon(at))
				}
			}
		}
	}
	slices.SortStableFunc(found, func(a, b addon) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.path, b.path)) })
	return found, unreadable
}

// isAddon reports whether an entry of a directory is an addon: a directory or a manifest file, also through a symbolic link.
func isAddon(path string) bool {
	if isHidden(path) {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && info.IsDir() || isManifest(path)
}

func isHidden(path string) bool { return strings.HasPrefix(filepath.Base(path), ".") }

func isManifest(path string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) && !isHidden(path)
}

func readAddon(path string) addon {
	name := addonName(path)
	a := addon{name: name, path: path, set: kubeapi.Set{Name: name, Source: path}}
	sum := sha256.New()
	files, err := manifestFiles(path)
	errs := []error{err}
	for _, f := range files {
		data, err := readManifest(f)
		if err == nil {
			err = a.set.AddFile(f, data)
		}
		errs = append(errs, err)
		_, _ = fmt.Fprintf(sum, "%q %q\n", f, data) // a hash returns no errors
	}
	a.fault = errors.Join(errs...)
	a.digest = hex.EncodeToString(sum.Sum(nil))
	return a
}

// manifestFiles returns the manifests at path, in lexical order. path itself may have any name and be a symbolic link.
func manifestFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	// The final slash follows a symbolic link.
	err = filepath.WalkDir(path+string(filepath.Separator), func(at string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && filepath.Clean(at) != path && isHidden(at):
			return filepath.SkipDir
		case !d.IsDir() && isManifest(at):
			files = append(files, filepath.Clean(at))
		}
		return nil
	})
	return files, err
}

func readManifest(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", path)
	case info.Size() > maxManifest:
		return nil, fmt.Errorf("%s: has %d bytes, more than %d", path, info.Size(), maxManifest)
	case strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)) == "kustomization":
		return nil, fmt.Errorf("%s: kustomizations are not supported: write the output of `kubectl kustomize` to a file", path)
	}
	return os.ReadFile(path)
}

// nameLimit is the maximum length of the name of an addon, which is a label value.
const nameLimit = 50

var notInNames = regexp.MustCompile(`[^a-z0-9-]+`)

// addonName returns the name of the addon at path: that of the file without its extension. Characters that are not allowed in names of
// objects are replaced, and a part of a hash keeps such names different.
func addonName(path string) string {
	base := filepath.Base(path)
	if isManifest(path) {
		base = strings.TrimSuffix(base, filepath.Ext(base))
	}
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(base), "-"), "-")
	if name == base && len(name) <= nameLimit {
		return name
	}
	sum := sha256.Sum256([]byte(base))
	const hash = 4
	name = strings.Trim(name[:min(len(name), nameLimit-2*hash-1)], "-")
	return strings.Trim(name+"-"+hex.EncodeToString(sum[:hash]), "-")
}

// checkDuplicates sets the conflict of addons whose name or objects another addon has.
func checkDuplicates(all []addon) {
	names := map[string]string{}
	owners := map[kubeapi.ObjectID]string{}
	for i := range all {
		a := &all[i]
		if first, taken := names[a.name]; taken {
			a.conflict = fmt.Errorf("%s: the name %s belongs to %s: rename one of them", a.path, a.name, first)
			continue
		}
		names[a.name] = a.path
		for id, place := range a.set.Objects() {
			if first, taken := owners[id]; taken {
				a.conflict = errors.Join(a.conflict, fmt.Errorf("%s: %s is also in %s", place, id, first))
			} else {
				owners[id] = place
			}
		}
	}
}
