package portfwd

import (
	"context"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/api"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

const (
	spec1 = "tcp4 127.0.0.1 30001 10.0.2.100 30001"
	spec2 = "tcp4 127.0.0.1 30002 10.0.2.100 30002"
)

var nodePorts = Config{NodePorts: true}

// The tests below use synctest's clock: sleeping takes no time.

func TestForwardsFollowServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, src := newFakeManager(), newFakeSource(nodePort("a", 30001))
		f := start(t, Options{Manager: m, Source: src, Config: nodePorts})
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec1})
		assert.DeepEqual(t, f.states(), []string{"127.0.0.1:30001/tcp4 ns/a/web open"})

		src.set(nodePort("b", 30003))
		src.set(nodePort("b", 30002))
		src.remove("a")
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec2})

		clusterIP := nodePort("b", 30002)
		clusterIP.Type = "ClusterIP"
		src.set(clusterIP)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{})
		assert.DeepEqual(t, f.states(), []string{})

		src.set(nodePort("a", 30001))
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec1})
		assert.NilError(t, f.stop())
		assert.DeepEqual(t, m.has(), []string{})
	})
}

func TestPortInUseDoesNotAffectOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, src := newFakeManager(), newFakeSource(nodePort("a", 30001), nodePort("b", 30002))
		m.taken[30001] = true
		var events []Event
		began := time.Now()
		f := start(t, Options{Manager: m, Source: src, Config: nodePorts, OnEvent: func(e Event) { events = append(events, e) }})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec2})
		st := f.Status()[0]
		assert.Equal(t, st.State, StateFailed)
		assert.Equal(t, st.Since, began)
		assert.Check(t, is.Contains(st.Error, "address already in use"))
		assert.Check(t, is.Contains(st.Hint, "30001"))
		assert.Equal(t, len(events), 1, "reported once")
		assert.Equal(t, events[0].Owner.String(), "ns/a/web")
		assert.Equal(t, events[0].Reason, ReasonInUse)

		// 0.1 0.3 0.7 1.5 2.5 … 9.5 s, and at the start.
		assert.Equal(t, len(m.adds), 1+13)
		m.with(func() { m.taken[30001] = false })
		time.Sleep(time.Second)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec1, spec2})
		assert.Equal(t, len(events), 2)
		assert.Assert(t, !events[1].Warning)
		assert.Equal(t, events[1].Reason, ReasonOpen)
	})
}

// Causes that a person or another program can remove are retried within two seconds, and each is reported once. A privileged
// port is retried within a minute.
func TestTransientFailuresAreRetried(t *testing.T) {
	for text, reason := range map[string]string{
		"cannot expose privileged port 80 (currently 1024): listen: bind: permission denied": ReasonDenied,
		"listen tcp4 127.0.0.1:80: bind: address already in use":                             ReasonInUse,
		"listen tcp4 127.0.0.1:80: bind: cannot assign requested address":                    ReasonAddress,
		"socket: too many open files":                                                        ReasonFiles,
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newFakeManager()
			m.script = func(op string, s port.Spec) error { return refuse(text) }
			events := 0
			f := start(t, Options{Manager: m, OnEvent: func(Event) { events++ },
				Config: Config{Static: []Static{{Name: "web", Protocol: "tcp", HostPort: 80, ChildPort: 30080}}}})
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			assert.Equal(t, events, 1)
			assert.DeepEqual(t, f.states(), []string{"127.0.0.1:80/tcp4 static/web failed " + reason})
			if reason == ReasonDenied {
				assert.Check(t, is.Contains(f.Status()[0].Hint, "ip_unprivileged_port_start=80"))
				assert.Check(t, is.Contains(f.Status()[0].Hint, "setcap cap_net_bind_service"))
				assert.Check(t, is.Contains(f.Status()[0].Hint, "privilegedPortFallback"))
			}
			m.with(func() { m.script = nil })
			patience := 2 * time.Second
			if reason == ReasonDenied {
				patience = time.Minute
			}
			time.Sleep(patience)
			synctest.Wait()
			assert.DeepEqual(t, m.has(), []string{"tcp4 127.0.0.1 80 10.0.2.100 30080"})
			assert.Equal(t, events, 2, "the recovery is reported")
		})
	}
}

// Causes that do not change by themselves are retried rarely: another protocol needs another port driver.
func TestPermanentFailuresAreRetriedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeManager()
		m.script = func(op string, s port.Spec) error { return refuse("unsupported port protocol tcp4") }
		f := start(t, Options{Manager: m, Config: Config{Static: []Static{{Name: "web", Protocol: "tcp", HostPort: 80, ChildPort: 30080}}}})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		assert.Assert(t, len(m.adds) < 30, "%d", len(m.adds))
		assert.DeepEqual(t, f.states(), []string{"127.0.0.1:80/tcp4 static/web failed ProtocolNotForwarded"})
	})
}

func TestFreedPortIsUsedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, src := newFakeManager(), newFakeSource(nodePort("a", 30001), nodePort("b", 30002))
		full := true
		m.script = func(op string, s port.Spec) error {
			if op == "add" && full && len(m.ports) > 0 {
				return refuse("socket: too many open files")
			}
			return nil
		}
		f := start(t, Options{Manager: m, Source: src, Config: nodePorts})
		time.Sleep(time.Minute + time.Millisecond) // the back-off has reached 5 s
		synctest.Wait()
		open := "a"
		if strings.Contains(f.states()[0], "failed") {
			open = "b"
		}
		src.remove(open)
		synctest.Wait()
		assert.Equal(t, len(f.states()), 1)
		assert.Check(t, is.Contains(f.states()[0], "open"))
	})
}

func TestRestartTakesOverAndCleansUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, src := newFakeManager(), newFakeSource(nodePort("a", 30001), nodePort("b", 30002))
		foreign := port.Spec{Proto: "tcp", ParentPort: 8080, ChildPort: 80}
		_, err := m.AddPort(t.Context(), foreign)
		assert.NilError(t, err)
		twin := specOf(30007) // foreign, and also wanted by a Service
		_, err = m.AddPort(t.Context(), twin)
		assert.NilError(t, err)
		o := Options{Manager: m, Source: src, Config: nodePorts, Ledger: filepath.Join(t.TempDir(), "ports"), KeepOnStop: true}
		f := start(t, o)
		synctest.Wait()
		src.set(nodePort("twin", 30007))
		synctest.Wait()
		assert.Assert(t, f.Status()[2].Foreign)
		assert.NilError(t, f.stop())
		before := m.has()
		assert.Equal(t, len(before), 4)

		src.remove("b")
		src.remove("twin")
		m.adds, m.removes = nil, nil
		src.mute = true
		f = start(t, o)
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), before) // no forward is removed before the Services are known
		src.sink.Replace(src.list())
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{specKey(foreign), spec1, specKey(twin)})
		assert.Equal(t, len(m.adds), 0)
		assert.Equal(t, len(m.removes), 1)
		assert.NilError(t, f.stop())

		tidy, err := New(o)
		assert.NilError(t, err)
		assert.NilError(t, tidy.RemoveAll(t.Context()))
		tidy.ledger.close()
		assert.DeepEqual(t, m.has(), []string{specKey(foreign), specKey(twin)})
	})
}

// RootlessKit loses all forwards when the node is killed. Foreign forwards are restored, except those that were removed, and
// after a regular end there is nothing to restore.
func TestRestoreForeignAfterKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeManager()
		kept := port.Spec{Proto: "tcp", ParentPort: 8080, ChildPort: 80}
		gone := port.Spec{Proto: "udp4", ParentIP: "127.0.0.1", ParentPort: 5353, ChildIP: "10.0.2.100", ChildPort: 53}
		for _, s := range []port.Spec{kept, gone} {
			_, err := m.AddPort(t.Context(), s)
			assert.NilError(t, err)
		}
		o := Options{Manager: m, Ledger: filepath.Join(t.TempDir(), "ports"), RestoreForeign: true, KeepOnStop: true}
		f := start(t, o)
		synctest.Wait()
		m.with(func() { maps.DeleteFunc(m.ports, func(_ int, st port.Status) bool { return st.Spec.Proto == "udp4" }) })
		time.Sleep(DefaultResyncEvery + time.Second)
		synctest.Wait()
		assert.NilError(t, f.stop()) // KeepOnStop keeps the ledger like a kill
		m.with(func() { clear(m.ports) })

		o.KeepOnStop = false
		f = start(t, o)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{specKey(kept)})
		assert.NilError(t, f.stop())
		assert.DeepEqual(t, m.has(), []string{specKey(kept)}) // it is still foreign
		m.with(func() { clear(m.ports) })
		f = start(t, o)
		synctest.Wait()
		assert.Equal(t, len(m.has()), 0)
		assert.NilError(t, f.stop())
	})
}

func TestForeignForwardInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, src := newFakeManager(), newFakeSource(nodePort("a", 30001))
		s := specOf(30001)
		s.ChildPort = 80
		st, err := m.AddPort(t.Context(), s)
		assert.NilError(t, err)
		f := start(t, Options{Manager: m, Source: src, Config: nodePorts})
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{specKey(s)})
		assert.DeepEqual(t, f.states(), []string{"127.0.0.1:30001/tcp4 ns/a/web failed PortClash"})
		assert.Check(t, is.Contains(f.Status()[0].Error, "in use by RootlessKit forward 1"))
		assert.NilError(t, m.RemovePort(t.Context(), st.ID))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec1})
	})
}

func TestLostForwardsAreRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, src := newFakeManager(), newFakeSource(nodePort("a", 30001), nodePort("b", 30002))
		f := start(t, Options{Manager: m, Source: src, Config: nodePorts})
		synctest.Wait()
		m.with(func() { clear(m.ports) }) // another RootlessKit
		time.Sleep(DefaultResyncEvery + time.Second)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec1, spec2})

		m.with(func() { m.down = true })
		src.remove("a")
		src.set(nodePort("c", 30003))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Assert(t, m.lists < 200)
		assert.DeepEqual(t, f.states(), []string{
			"127.0.0.1:30001/tcp4 ns/a/web pending PortManagerUnreachable",
			"127.0.0.1:30002/tcp4 ns/b/web open",
			"127.0.0.1:30003/tcp4 ns/c/web pending PortManagerUnreachable"})
		m.with(func() { m.down = false })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{spec2, "tcp4 127.0.0.1 30003 10.0.2.100 30003"})
	})
}

func TestUnreachableFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, src := newFakeManager(), newFakeSource(nodePort("a", 30001))
		m.down = true
		f := start(t, Options{Manager: m, Source: src, Config: nodePorts})
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.DeepEqual(t, f.states(), []string{"127.0.0.1:30001/tcp4 ns/a/web pending PortManagerUnreachable"})
		assert.ErrorContains(t, f.stop(), "list forwarded ports: connection reset")
	})
}

func TestChildAddress(t *testing.T) {
	dual := nodePort("a", 30001)
	dual.IPFamilies = []string{"IPv4", "IPv6"}
	both := Config{NodePorts: true, BindAddresses: addrs("127.0.0.1", "::1")}
	synctest.Test(t, func(t *testing.T) {
		m := newFakeManager()
		f := start(t, Options{Manager: m, Source: newFakeSource(dual), Config: both})
		synctest.Wait()
		assert.DeepEqual(t, f.states(), []string{
			"127.0.0.1:30001/tcp4 ns/a/web open", "[::1]:30001/tcp6 ns/a/web failed AddressFamilyNotForwarded"})

		m.with(func() {
			m.info.NetworkDriver = &api.NetworkDriverInfo{ChildIP: []byte{10, 9, 8, 7}, DynamicChildIP: true}
		})
		time.Sleep(DefaultResyncEvery)
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{"tcp4 127.0.0.1 30001 10.9.8.7 30001"})
	})
	synctest.Test(t, func(t *testing.T) {
		m := newFakeManager()
		cfg := both
		cfg.ChildIPv6 = addrs("fd00::100")[0]
		cfg.Static = []Static{{Protocol: "tcp", HostPort: 1, HostIP: addrs("127.0.0.1")[0], ChildIP: addrs("127.0.0.1")[0]}}
		start(t, Options{Manager: m, Source: newFakeSource(dual), Config: cfg})
		synctest.Wait()
		assert.DeepEqual(t, m.has(), []string{"tcp4 127.0.0.1 1 127.0.0.1 1", spec1, "tcp6 ::1 30001 fd00::100 30001"})
		m.with(func() {
			m.info.PortDriver = &api.PortDriverInfo{Driver: "slirp4netns", Protos: []string{"tcp4"}, DisallowLoopbackChildIP: true}
		})
		time.Sleep(DefaultResyncEvery)
		synctest.Wait()
		assert.Assert(t, is.Contains(m.has(), "tcp4 127.0.0.1 1 10.0.2.100 1"))
	})
	synctest.Test(t, func(t *testing.T) {
		m := newFakeManager()
		m.info = api.Info{}
		f := start(t, Options{Manager: m, Source: newFakeSource(dual), Config: nodePorts})
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.DeepEqual(t, f.states(), []string{"127.0.0.1:30001/tcp4 ns/a/web failed NoPortDriver"})
		assert.Equal(t, len(m.adds), 0)
	})
}

func TestWarningsAreReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sctp := nodePort("a", 30001)
		sctp.Ports = append(sctp.Ports, ServicePort{Name: "s", Protocol: "SCTP", Port: 1, NodePort: 30009})
		m, src := newFakeManager(), newFakeSource(sctp)
		var events []Event
		start(t, Options{Manager: m, Source: src, Config: nodePorts, OnEvent: func(e Event) { events = append(events, e) }})
		synctest.Wait()
		for i := range 10 {
			src.set(nodePort("b", 30010+i))
			synctest.Wait()
		}
		assert.Equal(t, len(events), 1)
		assert.Check(t, is.Contains(events[0].Message, "SCTP"))
		assert.Equal(t, len(m.has()), 2)
	})
}

func TestOnChangeSeesEveryEndState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, src := newFakeManager(), newFakeSource()
		for i := range 500 {
			src.all[itoa(i)] = nodePort(itoa(i), 30000+i)
		}
		calls, last := 0, 0
		var f *Forwarder
		f, err := New(Options{Manager: m, Source: src, Config: nodePorts, OnChange: func() {
			calls++
			last = 0
			for _, s := range f.Status() {
				if s.State == StateOpen {
					last++
				}
			}
		}})
		assert.NilError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.Run(ctx) }()
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, last, 500)
		assert.Assert(t, calls <= 3, "%d", calls)
		src.remove("7")
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, last, 499)
		quiet := calls
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Equal(t, calls, quiet, "no call without a change")
		cancel()
		assert.NilError(t, <-done)
		assert.Equal(t, last, 0)
	})
}
