package portfwd

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"gotest.tools/v3/assert"
)

// An open port that accepts no connections stays open. Its owner gets one Event when that begins and one when it ends.
func TestTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, src := newFakeManager(), newFakeSource(nodePort("a", 30001), nodePort("b", 30002))
		var events []Event
		changes := 0
		f := start(t, Options{
			Manager: m, Source: src, Config: nodePorts, OnEvent: func(e Event) { events = append(events, e) }, OnChange: func() { changes++ },
		})
		synctest.Wait()
		place := Bind{Proto: TCP4, IP: netip.MustParseAddr("127.0.0.1"), Port: 30001}
		before := changes
		for range 2 {
			f.SetTrouble(map[Bind]Trouble{place: {Reason: ReasonConnections, Message: "new connections wait"}})
			time.Sleep(time.Second)
			synctest.Wait()
		}
		assert.Equal(t, len(events), 1)
		assert.Assert(t, events[0].Warning && events[0].Owner.String() == "ns/a/web" && events[0].Reason == ReasonConnections, "%+v", events[0])
		assert.Equal(t, changes, before+1)
		st := f.Status()
		assert.Equal(t, st[0].State, StateOpen)
		assert.Equal(t, st[0].Reason, ReasonConnections)
		assert.Equal(t, st[0].Error, "new connections wait")
		assert.Assert(t, st[0].Hint != "" && st[1].Reason == "")

		f.SetTrouble(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, len(events), 2)
		assert.Assert(t, !events[1].Warning && events[1].Reason == ReasonOpen, "%+v", events[1])
		assert.Equal(t, f.Status()[0].Reason, "")
		assert.Equal(t, len(m.adds), 2)
		assert.Equal(t, len(m.removes), 0)
	})
}
