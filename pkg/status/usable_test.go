package status

import (
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestMilestones(t *testing.T) {
	t.Parallel()
	up := []Component{comp("kubelet", Ready, "")}
	ready := Condition{Type: ConditionNodeReady, OK: true}
	dns := Condition{Type: ConditionClusterDNS, Message: "no pods", Steps: errdefs.Do(errdefs.Kubectl, "get", "pods")}
	pending := dns
	pending.Pending = true
	was := map[string]float64{NodeReadyTiming: 1}
	for _, tc := range []struct {
		name         string
		s            Status
		node, usable bool
	}{
		{"nothing yet", Status{State: NodeStarting}, false, false},
		{"components are up", Status{State: NodeStarting, Components: up}, false, false},
		{"a component starts", Status{State: NodeStarting, Components: []Component{comp("kubelet", Running, "")}, Conditions: []Condition{ready}}, false, false},
		{"DNS is pending", Status{State: NodeStarting, Components: up, Conditions: []Condition{ready, pending}}, true, false},
		{"DNS fails", Status{State: NodeDegraded, Components: up, Conditions: []Condition{ready, dns}}, true, false},
		{"another condition fails", Status{State: NodeDegraded, Components: up, Conditions: []Condition{ready, {Type: ConditionSharedMounts}}}, true, true},
		{"ready", Status{State: NodeReady, Components: up, Conditions: []Condition{ready}}, true, true},
		{"a component failed later", Status{State: NodeDegraded, Timings: was, Components: []Component{comp("a", Backoff, "")}, Conditions: []Condition{ready}}, true, true},
		{"stopping", Status{State: NodeStopping, Timings: was, Components: up, Conditions: []Condition{ready}}, false, false},
	} {
		assert.Check(t, is.Equal(tc.s.Reached(MilestoneNode), tc.node), tc.name)
		assert.Check(t, is.Equal(tc.s.Reached(MilestoneUsable), tc.usable), tc.name)
	}

	restored := Status{State: NodeReady, Components: up, Conditions: []Condition{ready}}
	for r, reached := range map[*Restored]bool{nil: false, {Pods: 1, Waiting: []string{"default/web"}}: false, {Pods: 1, Done: true}: true} {
		restored.Restored = r
		assert.Check(t, is.Equal(restored.Reached(MilestonePods), reached), "%+v", r)
		assert.Check(t, restored.Reached(MilestoneUsable))
	}
	restored.Restored = &Restored{Waiting: []string{"default/web", "port 127.0.0.1:80/tcp"}}
	waits, fix := restored.Missing(MilestonePods)
	assert.DeepEqual(t, waits, []string{"waiting for pods of the last run: default/web, port 127.0.0.1:80/tcp"})
	assert.Equal(t, len(fix), 1)
	restored.Conditions = append(restored.Conditions, dns)
	assert.Check(t, !restored.Reached(MilestonePods), "pods includes usable")

	s := Status{Components: []Component{comp("kubelet", Waiting, "", "etcd")}, Conditions: []Condition{ready, dns}}
	texts, hint := s.Missing(MilestoneUsable)
	assert.DeepEqual(t, texts, []string{"kubelet is waiting for etcd", "ClusterDNS is not met: no pods"})
	assert.DeepEqual(t, hint, dns.Steps)
	texts, hint = s.Missing(MilestoneNode)
	assert.Equal(t, len(texts)+len(hint), 1)
}
