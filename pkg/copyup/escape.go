package copyup

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// A relative link of the host that leads out of a copied-up directory, such as /etc/ssl/certs -> ../../var/lib/ca-certificates, would
// lead to another path inside if its directory is reached through ".roNNN", which is one level deeper. Such a directory is made real,
// so that it has a copy of the link at the right level.

// Limits of the search for such links, because /var can be large. They cover the links of distributions: all of /etc, and packages with
// their subdirectories below /var and /opt.
const (
	escapeEntries = 20000
	escapeDepth   = 4
)

// withEscapes returns s with the directories in Merged that have relative links which lead out of a persistent copied-up directory. roots
// maps the copied-up directories to the names of their originals. Directories that cannot be read are skipped, and other file systems,
// because reading them may block.
func withEscapes(s Spec, roots map[string]string) Spec {
	s.Merged = slices.Clone(s.Merged)
	mounted := mountPoints()
	for root, original := range roots {
		if s.persistent(root) {
			s.Merged = append(s.Merged, escapingDirs(root, path.Join(root, original), mounted)...)
		}
	}
	slices.Sort(s.Merged)
	s.Merged = slices.Compact(s.Merged)
	return s
}

// escapingDirs returns the directories below root, with the names that they have inside, whose originals below the directory original have
// links that lead out of root. Links at the top are not deeper inside, so that they need nothing.
func escapingDirs(root, original string, mounted map[string]bool) []string {
	var found []string
	entries := 0
	_ = fs.WalkDir(os.DirFS(original), ".", func(name string, e fs.DirEntry, err error) error {
		entries++
		switch {
		case entries > escapeEntries:
			return fs.SkipAll
		case err != nil, e.IsDir() && name != "." && (mounted[path.Join(original, name)] || strings.Count(name, "/") >= escapeDepth):
			return fs.SkipDir
		case e.Type()&fs.ModeSymlink == 0 || path.Dir(name) == ".":
			return nil
		}
		dir := path.Join(root, path.Dir(name))
		if slices.Contains(found, dir) {
			return nil
		}
		if text, err := os.Readlink(path.Join(original, name)); err == nil && escapes(path.Dir(name), text) {
			found = append(found, dir)
		}
		return nil
	})
	return found
}

// escapes reports whether a link in dir, relative to a root, with the text link leads out of the root through "..".
func escapes(dir, link string) bool {
	if path.IsAbs(link) {
		return false
	}
	depth := strings.Count(dir, "/") + 1
	for element := range strings.SplitSeq(link, "/") {
		switch element {
		case "", ".":
		case "..":
			depth--
		default:
			depth++
		}
		if depth < 0 {
			return true
		}
	}
	return false
}

// mountPoints returns the mount points of this mount namespace. Without mountinfo it is empty.
func mountPoints() map[string]bool {
	points := map[string]bool{}
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return points
	}
	for _, m := range infos {
		points[m.Mountpoint] = true
	}
	return points
}

// originals returns the copied-up directories of s with the names of their originals.
func originals(s Spec) (map[string]string, error) {
	roots := map[string]string{}
	for _, dir := range s.CopyUp {
		root := path.Clean(dir)
		original, err := liveView{}.Original(root)
		if err != nil {
			return nil, fmt.Errorf("find the original of %s: %w", root, err)
		}
		roots[root] = original
	}
	return roots, nil
}
