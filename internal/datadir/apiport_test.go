package datadir

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// TestPickAPIPort checks that nodes of one account get different ports, also at the same time, and keep them.
func TestPickAPIPort(t *testing.T) {
	t.Parallel()
	r := Registry{XDGDataHome: t.TempDir()}
	ids := IDs{UID: os.Getuid(), Subuids: []IDRange{{1, 1}}, Subgids: []IDRange{{1, 1}}}
	node := func(name string) layout.Data {
		d := layout.NewData(filepath.Join(t.TempDir(), name))
		assert.NilError(t, Claim(d, name, ids, "me"))
		assert.NilError(t, r.Put(name, d.Dir))
		return d
	}
	const first, last = 20000, 20003
	free := func(port int) bool { return port != 20001 }
	nodes := []layout.Data{node("a"), node("b"), node("c")}
	ports := make([]int, len(nodes))
	var all sync.WaitGroup
	for i, d := range nodes {
		all.Go(func() {
			var err error
			ports[i], _, err = r.PickAPIPort(d, first, last, free)
			assert.Check(t, err)
		})
	}
	all.Wait()
	seen := map[int]bool{20001: true}
	for i, port := range ports {
		assert.Assert(t, !seen[port] && port >= first && port <= last, "%v", ports)
		seen[port] = true
		again, was, err := r.PickAPIPort(nodes[i], first, last, free)
		assert.NilError(t, err)
		assert.Equal(t, again, port)
		assert.Equal(t, was, port)
	}
	_, _, err := r.PickAPIPort(node("d"), first, last, free)
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	assert.ErrorContains(t, err, "none of the ports 20000 to 20003 (ports.pickRange) is free")

	taken := func(port int) bool { return port != ports[0] }
	other, was, err := r.PickAPIPort(nodes[0], first, last+1, taken)
	assert.NilError(t, err)
	assert.Equal(t, was, ports[0])
	assert.Assert(t, other == 20001 || other == 20004, "%d", other) // the others belong to b and c
}
