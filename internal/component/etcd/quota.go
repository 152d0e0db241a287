package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// QuotaField is the setting of the maximum size of the database.
const QuotaField = "controlPlane.etcdQuotaBytes"

// Database returns the path of the database below etcd's data directory.
func Database(dir string) string { return filepath.Join(dir, "member", "snap", "db") }

// CheckQuota returns an error of class errdefs.ErrConfig if the database below dir, the data directory of a stopped etcd,
// is larger than the quota in c, because etcd would then refuse every write. An etcd that was stopped at its quota can be
// larger by a few writes, so an eighth of the quota is allowed on top.
//
// Runs in: parent.
func CheckQuota(c *config.NodeConfig, dir string) error {
	size, err := databaseSize(Database(dir))
	quota := c.ControlPlane.EtcdQuotaBytes
	if err != nil || size <= quota+quota/8 {
		return nil // etcd reports a database that cannot be read
	}
	return errdefs.Config("%s: %d is smaller than the database of the datastore, which has %d bytes (%d MiB) on disk, so that every write would be refused",
		QuotaField, quota, size, size>>20).
		Hint("# use a quota of at least a third more than the database").Do(errdefs.Start, fmt.Sprintf("%s=%d", QuotaField, roomFor(size))).
		Hint("# or start the node once with the former quota: it frees the space that is not in use")
}

// roomFor returns the smallest multiple of 64 MiB that is a third larger than size.
func roomFor(size int64) int64 {
	const step = 64 << 20
	return (size + size/3 + step - 1) / step * step
}

// meta is a meta page of a bbolt database (go.etcd.io/bbolt, internal/common). The first two pages of a database are meta
// pages; the valid one with the higher Txid is current. The package itself is not used, because it maps and locks the
// file, and panics if it is damaged.
type meta struct {
	Magic, Version, PageSize, Flags uint32
	Root, Sequence, Freelist        uint64
	// Pages is the number of pages that were ever in use. etcd compares this size with its quota, not the size of the
	// file, which grows in larger steps.
	Pages    uint64
	Txid     uint64
	Checksum uint64
}

const (
	metaMagic   = 0xED0CDAED
	metaVersion = 2
	// metaOffset is the size of a page's header, and metaSize that of meta.
	metaOffset, metaSize = 16, 64
	checksumOffset       = metaSize - 8
)

var errNoDatabase = errors.New("no valid meta page")

// databaseSize returns the size in bytes that etcd compares with its quota.
func databaseSize(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return 0, errors.Join(err, fs.ErrInvalid)
	}
	first, err := readMeta(f, 0)
	if err != nil { // the page size is then not known; etcd uses that of the system
		return sizeOf(readMeta(f, int64(os.Getpagesize())))
	}
	second, err := readMeta(f, int64(first.PageSize))
	if err == nil && second.Txid > first.Txid {
		first = second
	}
	return sizeOf(first, nil)
}

func sizeOf(m meta, err error) (int64, error) { return int64(m.Pages) * int64(m.PageSize), err }

func readMeta(f *os.File, page int64) (meta, error) {
	var b [metaSize]byte
	var m meta
	if _, err := f.ReadAt(b[:], page+metaOffset); err != nil {
		return m, err
	}
	if _, err := binary.Decode(b[:], binary.NativeEndian, &m); err != nil {
		return m, err
	}
	sum := fnv.New64a()
	_, _ = sum.Write(b[:checksumOffset]) // never fails
	if m.Magic != metaMagic || m.Version != metaVersion || m.Checksum != sum.Sum64() {
		return meta{}, errNoDatabase
	}
	return m, nil
}
