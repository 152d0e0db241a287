package preflight

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// fingerprint changes whenever the content of a file may have changed, because a program cannot set ctime (inode(7)).
type fingerprint struct {
	Size  int64  `json:"size"`
	MTime int64  `json:"mtime"`
	CTime int64  `json:"ctime"`
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`

	regular, executable bool
}

func fingerprintOf(path string) (fingerprint, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fingerprint{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fingerprint{
		Size: st.Size, MTime: st.Mtim.Nano(), CTime: st.Ctim.Nano(), Dev: st.Dev, Inode: st.Ino,
		regular: st.Mode&unix.S_IFMT == unix.S_IFREG, executable: st.Mode&0o111 != 0,
	}, nil
}

func (f fingerprint) same(o fingerprint) bool {
	return f.Size == o.Size && f.MTime == o.MTime && f.CTime == o.CTime && f.Dev == o.Dev && f.Inode == o.Inode
}

// fileHash is the hash of a file and the fingerprint that the file had.
type fileHash struct {
	fingerprint
	SHA256 string `json:"sha256"`
}

// verifiedFiles is the content of layout.Data.Verified.
type verifiedFiles struct {
	Files map[string]fileHash `json:"files"`
}

// hashCache is the cache of file hashes. A cache file that cannot be read counts as empty.
type hashCache struct {
	mu      sync.Mutex
	known   map[string]fileHash
	changed bool
}

func readHashes(file string) *hashCache {
	h := &hashCache{known: map[string]fileHash{}}
	var stored verifiedFiles
	if layout.ReadState(file, &stored) == nil && stored.Files != nil {
		h.known = stored.Files
	}
	return h
}

func (h *hashCache) sum(path string, now fingerprint) (string, error) {
	h.mu.Lock()
	k, ok := h.known[path]
	h.mu.Unlock()
	if ok && k.same(now) {
		return k.SHA256, nil
	}
	sum, err := hashFile(path)
	if err != nil {
		return "", err
	}
	after, err := fingerprintOf(path)
	if err != nil || !after.same(now) {
		return sum, err // changed while it was read: do not cache
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.known[path], h.changed = fileHash{now, sum}, true
	return sum, nil
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// write saves the hashes of files. Errors are ignored because it is only a cache: without it (no data dir yet, disk full) the
// next start hashes the files again.
func (h *hashCache) write(file string, files []string) {
	if !h.changed || file == "" {
		return
	}
	keep := map[string]fileHash{}
	for _, f := range files {
		if k, ok := h.known[f]; ok {
			keep[f] = k
		}
	}
	b, err := layout.EncodeState(verifiedFiles{keep})
	if err != nil {
		return
	}
	_ = atomicfile.Write(file, b, 0o600)
}
