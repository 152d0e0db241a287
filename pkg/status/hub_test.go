package status

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

func TestMain(m *testing.M) {
	if serveIfAsked() {
		return
	}
	goleak.VerifyTestMain(m)
}

// becomeReady changes the state of a hub to ready.
func becomeReady(h *Hub) {
	h.SetComponent(Component{Name: "kubelet", State: Starting}, nil)
	h.SetComponent(Component{Name: "kubelet", State: Ready}, nil)
	h.SetCondition(Condition{Type: ConditionNodeReady, OK: true})
}

func TestHubLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(Status{Name: "default", StartedAt: time.Now()}, Options{})
		assert.Equal(t, h.Snapshot().State, NodeStarting)
		h.SetComponent(Component{Name: "kubelet", State: Running, Log: "/log"}, nil)
		time.Sleep(2 * time.Second)
		h.SetComponent(Component{Name: "kubelet", State: Ready}, nil)
		time.Sleep(time.Second)
		h.SetCondition(Condition{Type: ConditionNodeReady, OK: true})
		s := h.Snapshot()
		assert.Equal(t, s.State, NodeReady)
		assert.DeepEqual(t, s.Timings, map[string]float64{"kubelet": 2, NodeReadyTiming: 3})
		assert.Equal(t, s.Component("kubelet").Log, "/log")

		time.Sleep(time.Minute)
		h.SetComponent(Component{Name: "kubelet", State: Backoff, Restarts: 1, Reason: "exit 1"}, []string{"panic"})
		h.SetComponent(Component{Name: "kubelet", State: Ready, Restarts: 1}, nil)
		h.SetStopping("stop requested")
		h.SetStopping("again")
		h.SetStopped()
		s = h.Snapshot()
		assert.Equal(t, s.State, NodeStopped)
		assert.Equal(t, s.Reason, "stop requested")
		assert.DeepEqual(t, s.Timings, map[string]float64{"kubelet": 2, NodeReadyTiming: 3}) // not updated by later changes

		var got []string
		for _, e := range h.Events() {
			got = append(got, e.Component+": "+e.From+" -> "+e.To)
		}
		assert.DeepEqual(t, got, []string{
			"kubelet:  -> running", "kubelet: running -> ready", "node: starting -> ready",
			"kubelet: ready -> backoff", "node: ready -> degraded", "kubelet: backoff -> ready", "node: degraded -> ready",
			"node: ready -> stopping", "node: stopping -> stopped",
		})
		assert.DeepEqual(t, h.Events()[3].Tail, []string{"panic"})
		assert.Equal(t, h.Events()[3].Level, LevelWarning)
	})
}

func TestHubFailure(t *testing.T) {
	t.Parallel()
	h := NewHub(Status{}, Options{})
	h.SetFailed("uplink lost")
	h.SetFailed("something later")
	h.SetStopping("stop requested")
	assert.Equal(t, h.Snapshot().State, NodeStopping)
	h.SetStopped()
	s := h.Snapshot()
	assert.Equal(t, s.State, NodeFailed)
	assert.Equal(t, s.Reason, "uplink lost")
}

func TestHubOwnsItsFields(t *testing.T) {
	t.Parallel()
	h := NewHub(Status{}, Options{})
	h.Update(func(s *Status) { s.State, s.Reason, s.ResourceVersion = NodeReady, "because", 99 })
	s := h.Snapshot()
	assert.Equal(t, s.State, NodeStarting)
	assert.Equal(t, s.ResourceVersion, uint64(2))
	assert.Equal(t, len(h.Events()), 0)
}

func TestSnapshotIsACopy(t *testing.T) {
	t.Parallel()
	h := NewHub(Status{}, Options{})
	becomeReady(h)
	h.SetPorts([]Port{{HostPort: 1}})
	s := h.Snapshot()
	s.Components[0].Name, s.Ports[0].HostPort, s.Timings["kubelet"] = "changed", 2, -1
	again := h.Snapshot()
	assert.Equal(t, again.Components[0].Name, "kubelet")
	assert.Equal(t, again.Ports[0].HostPort, 1)
	assert.Check(t, again.Timings["kubelet"] >= 0)
}

func TestWaitIsWokenByChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(Status{}, Options{})
		first, err := h.Wait(t.Context(), 0)
		assert.NilError(t, err)
		got := make(chan Status, 1)
		go func() {
			s, _ := h.Wait(t.Context(), first.ResourceVersion)
			got <- s
		}()
		synctest.Wait()
		assert.Equal(t, len(got), 0)
		h.SetComponent(Component{Name: "etcd", State: Starting}, nil)
		assert.Equal(t, (<-got).Components[0].Name, "etcd")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s, err := h.Wait(ctx, h.Snapshot().ResourceVersion)
		assert.Check(t, is.ErrorIs(err, context.DeadlineExceeded))
		assert.Equal(t, s.Components[0].Name, "etcd")
		go h.Close()
		_, err = h.Wait(t.Context(), s.ResourceVersion)
		assert.NilError(t, err)
	})
}

func TestChangedMissesNothing(t *testing.T) {
	t.Parallel()
	h := NewHub(Status{}, Options{})
	ch := h.Changed()
	h.Update(func(s *Status) { s.NodeName = "n" })
	<-ch
}

func TestSubscribe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(Status{}, Options{Keep: 4})
		h.Publish(Event{Component: "a"})
		all, fresh := h.Subscribe(t.Context(), true), h.Subscribe(t.Context(), false)
		slow := h.Subscribe(t.Context(), true)
		assert.Equal(t, (<-all).Component, "a")
		synctest.Wait() // the goroutine of slow has taken one event
		for range 10 {
			h.Publish(Event{Component: "b"})
		}
		// The hub did not block although no event was read. Event 1 is pending for slow, 2 to 7 are lost, 8 to 11 kept.
		assert.Equal(t, (<-slow).Seq, uint64(1))
		assert.Equal(t, (<-slow).Lost, uint64(6))
		assert.Equal(t, (<-slow).Seq, uint64(8))
		h.Close()
		var rest []uint64
		for e := range slow {
			rest = append(rest, e.Seq)
		}
		assert.DeepEqual(t, rest, []uint64{9, 10, 11})
		n := 0
		for e := range fresh {
			assert.Check(t, e.Component != "a")
			n++
		}
		assert.Check(t, n > 0)
		for range all { // ends because the hub is closed
		}
	})
}

func TestSubscriptionEndsWithContext(t *testing.T) {
	t.Parallel()
	h := NewHub(Status{}, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	ch := h.Subscribe(ctx, true)
	h.Publish(Event{Component: "a"}) // stays pending, because nothing reads the channel
	cancel()
	for range ch {
	}
}

func TestConditionEvents(t *testing.T) {
	t.Parallel()
	h := NewHub(Status{}, Options{})
	h.SetCondition(Condition{Type: ConditionUplink, OK: true})                     // true from the start: no event
	h.SetCondition(Condition{Type: ConditionUplink, Message: "slirp4netns died"})  // changed
	h.SetCondition(Condition{Type: ConditionUplink, Message: "still"})             // unchanged: no event
	h.SetCondition(Condition{Type: ConditionNodeReady, Message: "not registered"}) // normal during the start
	h.SetCondition(Condition{Type: ConditionUplink, OK: true})
	var got []string
	for _, e := range h.Events() {
		got = append(got, e.Level+" "+e.Component+" "+e.From+" -> "+e.To+": "+e.Reason)
	}
	assert.DeepEqual(t, got, []string{
		"warning node/Uplink met -> not met: slirp4netns died",
		"info node/NodeReady  -> not met: not registered",
		"info node/Uplink not met -> met: ",
	})
}

func TestPortEvents(t *testing.T) {
	t.Parallel()
	h := NewHub(Status{}, Options{})
	p := Port{HostIP: "127.0.0.1", HostPort: 80, Proto: "tcp", Owner: "default/web", State: PortFailed, Error: "in use"}
	h.SetPorts([]Port{p})
	h.SetPorts([]Port{p})
	p.State, p.Error = PortForwarded, ""
	h.SetPorts([]Port{p})
	h.SetPorts(nil)
	var got []string
	for _, e := range h.Events() {
		got = append(got, e.Level+" "+e.Component+" "+e.From+" -> "+e.To+": "+e.Reason)
	}
	assert.DeepEqual(t, got, []string{
		"warning port/127.0.0.1:80/tcp  -> failed: in use",
		"info port/127.0.0.1:80/tcp failed -> forwarded: default/web",
		"info port/127.0.0.1:80/tcp forwarded -> removed: default/web",
	})
}
