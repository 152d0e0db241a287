package bugreport

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxStateFile is the maximum size of a state file in bytes.
const maxStateFile = 1 << 20

// stateFiles copies the files in which the node keeps its state, and which have no keys.
func stateFiles(_ context.Context, in *Input) ([]file, error) {
	var files []file
	var errs []error
	d, rt := in.Data, in.Runtime
	for _, path := range []string{
		d.Record(), d.LastExit(), d.Ports(), d.ManualPorts(), d.ImportedImages(), d.JoinRecord(), in.Registry,
		rt.Config(), rt.CgroupFile(), rt.Handover(), rt.Uplink(), rt.HostAddresses(), rt.NodeAddress(), rt.HostRoutes(), rt.HostResolver(), rt.PortFaults(),
	} {
		text, err := readHead(path, maxStateFile)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		default:
			name := filepath.Base(path)
			if path == in.Registry {
				name = "registry-entry.json"
			}
			files = append(files, file{"state/" + name, text})
		}
	}
	return files, errors.Join(errs...)
}

// readHead returns the beginning of a regular file.
func readHead(path string, most int64) (string, error) {
	f, err := openRegular(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most))
	return string(b), err
}

// openRegular opens a regular file, and fails for others instead of waiting for a writer of a pipe.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, f.Close(), fmt.Errorf("read %s: not a regular file", path))
	}
	return f, nil
}

// certificates describes the node's certificates, without keys.
func certificates(_ context.Context, in *Input) ([]file, error) {
	var b strings.Builder
	var errs []error
	for _, dir := range []string{in.Data.PKI(), in.Data.KubeletPKI()} {
		errs = append(errs, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || !e.Type().IsRegular() || !slices.Contains([]string{".crt", ".pem"}, filepath.Ext(path)) {
				return err
			}
			text, err := readHead(path, maxStateFile)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(in.Data.Dir, path)
			b.WriteString(name + ": " + describeCertificate(text) + "\n")
			return err
		}))
	}
	return []file{{"certificates.txt", b.String()}}, errors.Join(errs...)
}

func describeCertificate(text string) string {
	rest := []byte(text)
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return "no certificate"
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("%s, issued by %s, valid from %s to %s, for %v %v", c.Subject, c.Issuer,
			c.NotBefore.Format(time.RFC3339), c.NotAfter.Format(time.RFC3339), c.DNSNames, c.IPAddresses)
	}
}

// Bounds of a listing of a directory.
const (
	maxListDepth   = 3
	maxListEntries = 2000
)

// directories lists the files of the node, without their contents, and the free space.
func directories(ctx context.Context, in *Input) ([]file, error) {
	var files []file
	var errs []error
	for _, dir := range []struct{ name, path string }{
		{"data-dir.txt", in.Data.Dir}, {"runtime-dir.txt", filepath.Dir(in.Runtime.Dir)}, {"components-dir.txt", in.cfg().ComponentsDir},
	} {
		text, err := listing(ctx, dir.path)
		files, errs = append(files, file{"directories/" + dir.name, text}), append(errs, err)
	}
	return files, errors.Join(errs...)
}

// listing describes a directory. A directory of another id inside is listed as unreadable.
func listing(ctx context.Context, dir string) (string, error) {
	var b strings.Builder
	b.WriteString(dir + "\n")
	if dir == "" {
		return "", nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err == nil {
		block := uint64(st.Bsize) //nolint:gosec // a size is not negative
		fmt.Fprintf(&b, "file system %#x: %d MiB of %d MiB free, %d of %d inodes free, flags %#x\n",
			st.Type, st.Bavail*block>>20, st.Blocks*block>>20, st.Ffree, st.Files, st.Flags)
	}
	entries := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path) // path is below dir
		if err != nil {
			b.WriteString(name + ": " + err.Error() + "\n")
			return nil
		}
		if entries++; entries > maxListEntries {
			b.WriteString("[cut]\n")
			return fs.SkipAll
		}
		b.WriteString(describeEntry(name, e))
		if e.IsDir() && strings.Count(name, "/") >= maxListDepth-1 {
			return fs.SkipDir
		}
		return ctx.Err()
	})
	return b.String(), err
}

func describeEntry(name string, e fs.DirEntry) string {
	info, err := e.Info()
	if err != nil {
		return name + ": " + err.Error() + "\n"
	}
	owner := ""
	if st, ok := info.Sys().(*unixStat); ok {
		owner = fmt.Sprintf("%d:%d", st.Uid, st.Gid)
	}
	return fmt.Sprintf("%s %-11s %10d %s %s\n", info.Mode(), owner, info.Size(), info.ModTime().UTC().Format(time.RFC3339), name)
}

// logs returns the ends of all logs.
func logs(_ context.Context, in *Input) ([]file, error) {
	paths, err := filepath.Glob(filepath.Join(in.Data.LogDir(), "*.log"))
	errs := []error{err}
	var files []file
	for _, path := range paths {
		text, err := readTail(path, maxLog)
		files, errs = append(files, file{"logs/" + filepath.Base(path), text}), append(errs, err)
	}
	return files, errors.Join(errs...)
}

// readTail returns the last lines of a regular file, up to a number of bytes.
func readTail(path string, most int64) (string, error) {
	f, err := openRegular(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	from := max(0, size-most)
	b := make([]byte, size-from)
	n, err := f.ReadAt(b, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	text := string(b[:n])
	if from > 0 { // a part of a line may be a part of a secret
		_, text, _ = strings.Cut(text, "\n")
	}
	return text, nil
}
