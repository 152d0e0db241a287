package portfwd

import (
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"gotest.tools/v3/assert"
)

// world is a random history of a node: Services come and go, other programs and users take ports, answers are lost,
// RootlessKit and the forwarder restart.
type world struct {
	t       *testing.T
	rnd     *rand.Rand
	m       *fakeManager
	src     *fakeSource
	o       Options
	f       *running
	filter  *fakeFilter
	foreign map[string]port.Spec
}

const worldPorts = 12

func (w *world) service() Service {
	s := nodePort("s"+itoa(w.rnd.IntN(8)), 30000+w.rnd.IntN(worldPorts))
	if w.rnd.IntN(2) == 0 {
		s.Ports = append(s.Ports, ServicePort{Name: "u", Protocol: "UDP", Port: 53, NodePort: 30000 + w.rnd.IntN(worldPorts)})
	}
	s.UID = itoa(w.rnd.IntN(3))
	if w.rnd.IntN(3) == 0 {
		s.Type, s.LoadBalancerSourceRanges = "LoadBalancer", []string{"192.0.2." + itoa(w.rnd.IntN(3)) + "/32"}
	}
	return s
}

func (w *world) step() {
	switch w.rnd.IntN(16) {
	case 0:
		w.m.with(func() { w.m.taken[30000+w.rnd.IntN(worldPorts)] = true })
	case 1:
		w.m.with(func() { clear(w.m.taken) })
	case 2:
		w.m.with(func() { w.m.down = true })
	case 3:
		w.m.with(func() { w.m.down = false })
	case 4: // a foreign forward, which never looks like one of the Forwarder
		s := specOf(30000 + w.rnd.IntN(worldPorts))
		s.ChildPort = 80
		w.addForeign(s)
	case 5:
		w.removeForeign()
	case 6: // RootlessKit restarts
		w.m.with(func() { clear(w.m.ports); w.m.nextID = 1 + w.rnd.IntN(3) })
		w.filter.with(func() { w.filter.allowed = nil })
		clear(w.foreign)
		time.Sleep(DefaultResyncEvery) // its clients end with it, so no client uses old ids
	case 7:
		w.restart()
		w.filter.with(func() { w.filter.fault = []error{nil, errLost}[w.rnd.IntN(2)] })
	case 8, 9, 10:
		w.src.remove("s" + itoa(w.rnd.IntN(8)))
	default:
		w.src.set(w.service())
	}
	switch w.rnd.IntN(3) {
	case 0:
		time.Sleep(time.Duration(w.rnd.IntN(3000)) * time.Millisecond)
	case 1:
		synctest.Wait()
	}
}

// addForeign and removeForeign change the manager directly, without lost answers.
func (w *world) addForeign(s port.Spec) {
	w.m.with(func() {
		for _, st := range w.m.ports {
			if st.Spec.Proto == s.Proto && st.Spec.ParentIP == s.ParentIP && st.Spec.ParentPort == s.ParentPort {
				return
			}
		}
		w.m.ports[w.m.nextID] = port.Status{ID: w.m.nextID, Spec: s}
		w.m.nextID++
		w.foreign[specKey(s)] = s
	})
}

func (w *world) removeForeign() {
	w.m.with(func() {
		for id, st := range w.m.ports {
			if _, ok := w.foreign[specKey(st.Spec)]; ok {
				delete(w.m.ports, id)
				delete(w.foreign, specKey(st.Spec))
				return
			}
		}
	})
}

// restart simulates a kill: the last line of the ledger may be incomplete, and answers may have been lost.
func (w *world) restart() {
	assert.NilError(w.t, w.f.stop())
	if w.rnd.IntN(2) == 0 {
		file, err := os.OpenFile(w.o.Ledger, os.O_APPEND|os.O_WRONLY, 0)
		assert.NilError(w.t, err)
		_, err = file.WriteString("-tcp4 127.0.0.1 300")
		assert.NilError(w.t, err)
		assert.NilError(w.t, file.Close())
	}
	w.f = start(w.t, w.o)
}

// foreignSurvive checks that no foreign forward was changed.
func (w *world) foreignSurvive() {
	has := w.m.has()
	for key := range w.foreign {
		assert.Assert(w.t, slices.Contains(has, key), "%s is gone; there are %v", key, has)
	}
}

// expected returns the forwards of the final state: the wanted ones, except where a foreign one was first.
func (w *world) expected() []string {
	held, list := map[string]bool{}, []string{}
	for key, s := range w.foreign {
		held[s.Proto+itoa(s.ParentPort)] = true
		list = append(list, key)
	}
	wanted, _ := Wanted(Input{Services: w.src.list(), Holders: w.f.ledger.holding()}, w.o.Config)
	for _, f := range wanted {
		if !held[f.Proto+itoa(f.Port)] {
			s := specOf(f.Port)
			s.Proto = f.Proto
			list = append(list, specKey(s))
		}
	}
	slices.Sort(list)
	return list
}

// rangesHold checks that open ports accept only the clients that their Services allow.
func (w *world) rangesHold() {
	wanted, _ := Wanted(Input{Services: w.src.list(), Holders: w.f.ledger.holding()}, w.o.Config)
	for _, f := range wanted {
		s := port.Spec{Proto: f.Proto, ParentIP: f.IP.String(), ParentPort: f.Port}
		want := "all"
		if f.Sources != "" {
			want = "[" + string(f.Sources) + "]"
		}
		foreign := slices.ContainsFunc(slices.Collect(maps.Values(w.foreign)), func(o port.Spec) bool {
			return o.Proto == s.Proto && o.ParentPort == s.ParentPort
		})
		if !foreign {
			assert.Equal(w.t, w.filter.clients(s), want, "%v", s)
		}
	}
}

func TestEveryHistoryConverges(t *testing.T) {
	for range 15 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			m := newFakeManager()
			m.lose = func() (bool, bool) { return rnd.IntN(8) == 0, rnd.IntN(2) == 0 }
			src, filter := newFakeSource(), &fakeFilter{m: m}
			w := &world{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), m: m, src: src, filter: filter, foreign: map[string]port.Spec{}, o: Options{
				Manager: m, Source: src, SourceFilter: filter, Config: nodePorts, Ledger: filepath.Join(t.TempDir(), "ports"), KeepOnStop: true,
				Concurrency: 1 + rnd.IntN(4),
			}}
			w.f = start(t, w.o)
			for range 150 {
				w.step()
				w.foreignSurvive()
			}
			m.with(func() { m.lose, m.down = nil, false; clear(m.taken) })
			filter.with(func() { filter.fault = nil })
			time.Sleep(2 * DefaultResyncEvery)
			synctest.Wait()
			assert.DeepEqual(t, m.has(), w.expected())
			w.rangesHold()
			for _, s := range w.f.Status() {
				assert.Assert(t, s.State == StateOpen || s.Reason == ReasonClash, "seed %d: %+v", seed, s)
			}
			w.o.KeepOnStop = false
			assert.NilError(t, w.f.stop())
			w.f = start(t, w.o)
			synctest.Wait()
			assert.NilError(t, w.f.stop())
			m.with(func() { assert.Equal(t, len(m.ports), len(w.foreign), "seed %d", seed) })
			w.foreignSurvive()
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
