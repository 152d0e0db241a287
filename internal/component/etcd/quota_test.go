package etcd

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const pageSize = 4096

// page returns a meta page of a database with this number of pages. A damaged one has a wrong checksum.
func page(t *testing.T, pages, txid uint64, damaged bool) []byte {
	t.Helper()
	m := meta{Magic: metaMagic, Version: metaVersion, PageSize: pageSize, Root: 3, Freelist: 1<<64 - 1, Pages: pages, Txid: txid}
	var b bytes.Buffer
	assert.NilError(t, binary.Write(&b, binary.NativeEndian, m))
	sum := fnv.New64a()
	_, _ = sum.Write(b.Bytes()[:checksumOffset])
	m.Checksum = sum.Sum64()
	if damaged {
		m.Checksum++
	}
	b.Reset()
	b.Write(make([]byte, metaOffset))
	assert.NilError(t, binary.Write(&b, binary.NativeEndian, m))
	return append(b.Bytes(), make([]byte, pageSize-b.Len())...)
}

// writeDatabase writes a database below a new data directory and returns that.
func writeDatabase(t *testing.T, content ...[]byte) string {
	t.Helper()
	dir := t.TempDir()
	assert.NilError(t, os.MkdirAll(filepath.Dir(Database(dir)), 0o700))
	assert.NilError(t, os.WriteFile(Database(dir), bytes.Join(content, nil), 0o600))
	return dir
}

func TestCheckQuota(t *testing.T) {
	t.Parallel()
	const mebibyte = (1 << 20) / pageSize // in pages
	for name, c := range map[string]struct {
		first, second []byte
		says          string
	}{
		"smaller":                   {page(t, 60*mebibyte, 8, false), page(t, 60*mebibyte, 9, false), ""},
		"stopped at the quota":      {page(t, 70*mebibyte, 8, false), page(t, 70*mebibyte, 9, false), ""},
		"larger":                    {page(t, 100*mebibyte, 8, false), page(t, 10*mebibyte, 7, false), "104857600 bytes (100 MiB)"},
		"the second page is newer":  {page(t, 10*mebibyte, 8, false), page(t, 100*mebibyte, 9, false), "104857600 bytes (100 MiB)"},
		"the newer page is damaged": {page(t, 10*mebibyte, 8, false), page(t, 100*mebibyte, 9, true), ""},
		"the first page is damaged": {page(t, 10*mebibyte, 8, true), page(t, 100*mebibyte, 7, false), "104857600 bytes (100 MiB)"},
		"both are damaged":          {page(t, 100*mebibyte, 8, true), page(t, 100*mebibyte, 7, true), ""},
		"cut off":                   {page(t, 100*mebibyte, 8, false)[:40], nil, ""},
		"empty":                     {nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config.Default()
			cfg.ControlPlane.EtcdQuotaBytes = 64 << 20
			err := CheckQuota(cfg, writeDatabase(t, c.first, c.second))
			if c.says == "" {
				assert.NilError(t, err)
				return
			}
			assert.ErrorIs(t, err, errdefs.ErrConfig)
			assert.Check(t, is.ErrorContains(err, "controlPlane.etcdQuotaBytes: 67108864 is smaller than"))
			assert.Check(t, is.ErrorContains(err, c.says))
			assert.DeepEqual(t, errdefs.ReportOf(err).Steps[0][1].Args, []string{"controlPlane.etcdQuotaBytes=201326592"})
		})
	}
	assert.NilError(t, CheckQuota(config.Default(), t.TempDir()), "a node without data")
}
