package images

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// packed returns a tar file like that of a Debian package.
func packed(t *testing.T, headers ...tar.Header) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		data := ""
		if h.Typeflag == tar.TypeReg {
			data = "content of " + h.Name
		}
		h.Size = int64(len(data))
		assert.NilError(t, w.WriteHeader(&h))
		_, err := io.WriteString(w, data)
		assert.NilError(t, err)
	}
	assert.NilError(t, w.Close())
	return &b
}

// members lists the members of a layer in order, as NAME or NAME -> TARGET.
func members(t *testing.T, layer []byte) []string {
	t.Helper()
	var all []string
	for r := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		assert.NilError(t, err)
		line := h.Name
		if h.Linkname != "" {
			line += " -> " + h.Linkname
		}
		all = append(all, line)
	}
}

func TestTreeMergesUsr(t *testing.T) {
	t.Parallel()
	tr := tree{}
	tr.link("/bin", "usr/bin")
	assert.NilError(t, tr.archive(packed(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeDir, Name: "./bin/", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeReg, Name: "./bin/cat", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeLink, Name: "./bin/a-cat", Linkname: "./bin/cat"},
		tar.Header{Typeflag: tar.TypeReg, Name: "./sbin/ip", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeReg, Name: "./usr/share/doc/cat/copyright", Mode: 0o644},
		tar.Header{Typeflag: tar.TypeReg, Name: "./usr/bin/su", Mode: 0o4755},
	)))
	var layer bytes.Buffer
	assert.NilError(t, tr.write(&layer))
	assert.DeepEqual(t, members(t, layer.Bytes()), []string{
		"bin -> usr/bin", "usr/", "usr/bin/", "usr/bin/cat", "usr/bin/su", "usr/sbin/", "usr/sbin/ip",
		// A hard link comes after its target, independent of their names.
		"usr/bin/a-cat -> usr/bin/cat",
	})
	assert.Equal(t, tr["usr/bin/su"].header.Mode, int64(0o4755), "the mode is that of the package")

	var again bytes.Buffer
	assert.NilError(t, tr.write(&again))
	assert.Assert(t, bytes.Equal(layer.Bytes(), again.Bytes()), "the same tree gives the same bytes")
}

func TestTreeKeepsADirectoryThatAPackageHasAsLink(t *testing.T) {
	t.Parallel()
	tr := tree{}
	tr.dir("/var/run", 0o755)
	assert.NilError(t, tr.archive(packed(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "./var/run", Linkname: "/run"})))
	assert.Equal(t, tr["var/run"].header.Typeflag, byte(tar.TypeDir))
}

func TestTreeArchiveIsCutShort(t *testing.T) {
	t.Parallel()
	whole, err := io.ReadAll(packed(t, tar.Header{Typeflag: tar.TypeReg, Name: "./etc/motd", Mode: 0o644}))
	assert.NilError(t, err)
	assert.Assert(t, tree{}.archive(bytes.NewReader(whole[:520])) != nil)
}

func TestCheckNamesWhatIsNotMade(t *testing.T) {
	t.Parallel()
	assert.NilError(t, Check([]string{registry + "agnhost:2.66.1", "registry.k8s.io/pause:3.10.2", registry + "volume/nfs:1.6.0"}))
	err := Check([]string{registry + "agnhost:9.9", "registry.k8s.io/new:1", "odd"})
	for _, image := range []string{registry + "agnhost:9.9", "registry.k8s.io/new:1", "odd"} {
		assert.Check(t, is.ErrorContains(err, image))
	}
}

func writeTree(t *testing.T, tr tree, file string) {
	t.Helper()
	f, err := os.Create(file)
	assert.NilError(t, err)
	assert.NilError(t, errors.Join(tr.write(f), f.Close()))
}
