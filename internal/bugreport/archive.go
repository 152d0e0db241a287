package bugreport

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"path"
	"time"
)

// archive is the archive that is written. The first error is returned by close.
type archive struct {
	gz  *gzip.Writer
	tar *tar.Writer
	dir string
	now time.Time
	err error
}

func newArchive(w io.Writer, in Input) *archive {
	gz := gzip.NewWriter(w)
	return &archive{gz: gz, tar: tar.NewWriter(gz), dir: Dir(in.Name), now: in.Now}
}

// Dir returns the name of the directory in the archive for the node called name.
func Dir(name string) string { return "rootlessnode-report-" + name }

func (a *archive) add(name, text string) {
	if a.err != nil {
		return
	}
	a.err = a.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: path.Join(a.dir, name), Mode: 0o600, Size: int64(len(text)), ModTime: a.now.Truncate(time.Second),
	})
	if a.err == nil {
		_, a.err = io.WriteString(a.tar, text)
	}
}

func (a *archive) close() error {
	if a.err != nil {
		return a.err
	}
	return errors.Join(a.tar.Close(), a.gz.Close())
}

// jsonText returns v as indented JSON.
func jsonText(v any) string {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err.Error() + "\n" // only for values that JSON does not have
	}
	return string(b) + "\n"
}
