package images

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// tree is the content of a layer, by clean paths without a leading slash. It is kept in memory, because an ordinary user cannot create files
// with the owners of a Debian package, and the largest tree is 200 MB.
type tree map[string]node

type node struct {
	header tar.Header
	data   []byte
}

// merged are directories that Debian has moved to /usr, with links at their former paths.
var merged = []string{"bin", "lib", "lib64", "sbin"}

// newRoot returns a tree with the links of a merged /usr and the directories that every program expects.
func newRoot() tree {
	t := tree{}
	for _, name := range merged {
		t.link("/"+name, "usr/"+name)
	}
	for _, name := range []string{"dev", "etc", "home", "proc", "root", "run", "sys", "usr/bin", "var/log", "var/run"} {
		t.dir("/"+name, 0o755)
	}
	t.dir("/tmp", 0o1777)
	return t
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// place returns the path with merged /usr for a path of a Debian package.
func place(name string) string {
	name = clean(name)
	for _, dir := range merged {
		if name == dir || strings.HasPrefix(name, dir+"/") {
			return "usr/" + name
		}
	}
	return name
}

func (t tree) dir(name string, mode int64) {
	name = clean(name)
	t[name] = node{header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}}
}

func (t tree) link(name, target string) {
	name = clean(name)
	t[name] = node{header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}}
}

func (t tree) text(name, content string) { t.bytes(name, 0o644, []byte(content)) }

func (t tree) bytes(name string, mode int64, data []byte) {
	name = clean(name)
	t[name] = node{header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))}, data: data}
}

// file adds a file of the host to the image.
func (t tree) file(name string, mode int64, source string) error {
	data, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	t.bytes(name, mode, data)
	return nil
}

// fileArchive adds the members of a tar file without changes.
func (t tree) fileArchive(source string) error {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	return errors.Join(t.archive(f), f.Close())
}

// unused are directories of Debian packages that are not needed.
var unused = []string{"usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/info/", "usr/share/zoneinfo/"}

// archive adds the members of a Debian package's tar file.
func (t tree) archive(r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := place(header.Name)
		skip := name == "" || slices.Contains(merged, clean(header.Name)) ||
			slices.ContainsFunc(unused, func(dir string) bool { return strings.HasPrefix(name+"/", dir) })
		if skip {
			continue
		}
		// Keep directories: packages may contain a link of that name for an unmerged /usr.
		if old, ok := t[name]; ok && old.header.Typeflag == tar.TypeDir && header.Typeflag != tar.TypeDir {
			continue
		}
		member := node{header: tar.Header{
			Typeflag: header.Typeflag, Name: name, Mode: header.Mode, Linkname: header.Linkname,
			Uid: header.Uid, Gid: header.Gid, Size: header.Size,
		}}
		if header.Typeflag == tar.TypeLink {
			member.header.Linkname = place(header.Linkname)
		}
		if member.data, err = io.ReadAll(tr); err != nil {
			return fmt.Errorf("member %s: %w", name, err)
		}
		t[name] = member
	}
}

// write writes the tree as a layer. The same tree gives the same bytes, because members are sorted and times are zero. Missing parent
// directories are added. Hard links come after their targets.
func (t tree) write(w io.Writer) error {
	all := maps.Clone(t)
	for name := range t {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				tree(all).dir(dir, 0o755)
			}
		}
	}
	tw := tar.NewWriter(w)
	for _, hard := range []bool{false, true} {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			member := all[name]
			if (member.header.Typeflag == tar.TypeLink) != hard {
				continue
			}
			header := member.header
			header.ModTime, header.Format = time.Unix(0, 0), tar.FormatPAX
			if header.Typeflag == tar.TypeDir {
				header.Name += "/"
			}
			if err := tw.WriteHeader(&header); err != nil {
				return fmt.Errorf("member %s: %w", name, err)
			}
			if _, err := io.Copy(tw, bytes.NewReader(member.data)); err != nil {
				return fmt.Errorf("member %s: %w", name, err)
			}
		}
	}
	return tw.Close()
}
