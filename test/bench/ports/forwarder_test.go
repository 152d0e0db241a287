package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/api"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"go.uber.org/goleak"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/poll"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/portdriver"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// 127.0.0.2 is the address of the host and 127.0.0.1 that of the node.
const hostSide, nodeSide = "127.0.0.2", "127.0.0.1"

// manager is the port driver of a node, called without RootlessKit's API. It counts the requests that the driver refuses.
type manager struct {
	port.ParentDriver
	refused atomic.Int32
}

func (m *manager) AddPort(ctx context.Context, s port.Spec) (*port.Status, error) {
	st, err := m.ParentDriver.AddPort(ctx, s)
	if err != nil {
		m.refused.Add(1)
	}
	return st, err
}

func (m *manager) RemovePort(ctx context.Context, id int) error {
	err := m.ParentDriver.RemovePort(ctx, id)
	if err != nil {
		m.refused.Add(1)
	}
	return err
}

func (m *manager) Info(ctx context.Context) (*api.Info, error) {
	d, err := m.ParentDriver.Info(ctx)
	return &api.Info{PortDriver: d, NetworkDriver: &api.NetworkDriverInfo{ChildIP: net.ParseIP(nodeSide)}}, err
}

func startDriver(t *testing.T) *manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "bp") // a socket's path must be short
	assert.NilError(t, err)
	d, err := portdriver.New(portdriver.Options{Log: io.Discard, StateDir: dir})
	assert.NilError(t, err)
	quit, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 2)
	go func() { ended <- portdriver.NewChild(io.Discard).RunChildDriver(d.OpaqueForChild(), quit, "") }()
	go func() { ended <- d.RunParentDriver(ready, quit, nil) }()
	<-ready
	t.Cleanup(func() {
		close(quit)
		assert.Check(t, <-ended)
		assert.Check(t, <-ended)
		assert.Check(t, os.RemoveAll(dir))
	})
	return &manager{ParentDriver: d}
}

// freePorts returns unused ports of the host's side.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var all []int
	for range n {
		l, err := net.Listen("tcp4", hostSide+":0")
		assert.NilError(t, err)
		defer l.Close()
		all = append(all, l.Addr().(*net.TCPAddr).Port)
	}
	return all
}

// TestEventsTwiceAndLost checks a node's client, forwarder and driver with an API server that sends each event twice, drops watches and
// does not resume them: no forward is missing, none is left over, and the port driver refuses no request.
func TestEventsTwiceAndLost(t *testing.T) {
	fake, err := newFakeAPI()
	assert.NilError(t, err)
	defer fake.close()
	fake.twice = true
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	assert.NilError(t, os.WriteFile(kubeconfig, fake.kubeconfig(), 0o600))
	c, err := kubeapi.New(kubeconfig, kubeapi.Options{})
	assert.NilError(t, err)
	defer c.Close()
	m := startDriver(t)
	f, err := portfwd.New(portfwd.Options{Manager: m, Source: services{c}, Endpoints: endpoints{c}, Config: portfwd.Config{
		NodePorts: true, BindAddresses: []netip.Addr{netip.MustParseAddr(hostSide)},
	}})
	assert.NilError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	defer func() { cancel(); assert.Check(t, <-done) }()

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	ports := freePorts(t, 20)
	wanted := map[string]int{}
	for round := range 40 {
		for range rnd.IntN(10) {
			name := "s" + strconv.Itoa(rnd.IntN(8))
			p := ports[rnd.IntN(len(ports))]
			used := slices.ContainsFunc(slices.Collect(maps.Values(wanted)), func(q int) bool { return p == q })
			if used || rnd.IntN(3) == 0 {
				fake.remove(name)
				delete(wanted, name)
			} else {
				fake.set(name, p)
				wanted[name] = p
			}
		}
		if round%4 == 0 {
			fake.drop()
			continue // the next changes are not sent to a watch
		}
		poll.WaitOn(t, func(poll.LogT) poll.Result { return compare(t, m, wanted) }, poll.WithDelay(2*time.Millisecond), poll.WithTimeout(time.Minute))
	}
	for _, p := range ports {
		accepted := false
		if conn, err := net.Dial("tcp4", net.JoinHostPort(hostSide, strconv.Itoa(p))); err == nil {
			accepted = conn.Close() == nil
		}
		assert.Check(t, accepted == slices.Contains(slices.Collect(maps.Values(wanted)), p), "port %d", p)
	}
	assert.Equal(t, m.refused.Load(), int32(0))
	fake.mu.Lock()
	defer fake.mu.Unlock()
	assert.Assert(t, fake.stale > 0, "no watch was refused")
}

// compare compares the forwarded ports with the Services' ports.
func compare(t *testing.T, m *manager, wanted map[string]int) poll.Result {
	t.Helper()
	all, err := m.ListPorts(t.Context())
	assert.NilError(t, err)
	var has []int
	for _, st := range all {
		has = append(has, st.Spec.ParentPort)
	}
	want := slices.Sorted(maps.Values(wanted))
	slices.Sort(has)
	if fmt.Sprint(has) != fmt.Sprint(want) {
		return poll.Continue("%v, want %v", has, want)
	}
	return poll.Success()
}
