package main

import (
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// TestStopWaits checks what `down` reports while it waits.
func TestStopWaits(t *testing.T) {
	t.Parallel()
	stopping := func(name, reason string) status.Component {
		return status.Component{Name: name, State: status.Stopping, Reason: reason}
	}
	for _, tc := range []struct {
		s    status.Status
		want string
	}{
		{status.Status{State: status.NodeReady, Components: []status.Component{stopping("etcd", "")}}, ""}, // a restart
		{status.Status{State: status.NodeStopping, Components: []status.Component{{Name: "etcd", State: status.Ready}}}, ""},
		{status.Status{State: status.NodeStopping, Components: []status.Component{stopping("kubelet", ""), stopping("etcd", "")}}, "components: kubelet, etcd"},
		{status.Status{State: status.NodeStopping, Components: []status.Component{
			stopping("flannel", ""), stopping("pods", "default/web (stop signal sent, up to 30s)"),
		}}, "pods: default/web (stop signal sent, up to 30s)"},
	} {
		assert.Equal(t, stopWaits(&tc.s), tc.want)
	}
}

// TestDownPodTimeout checks the time limit of pods.
func TestDownPodTimeout(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{"5s": "begin stop 5s", "0s": "begin stop 1ms"} {
		c := newCLI(t)
		c.node.statuses = upStatuses()
		assert.Equal(t, c.run("down", "--delete-data", "--pod-timeout", arg), 0)
		assert.DeepEqual(t, c.node.calls, []string{"status", want, "stop", "delete"})
	}
	c := newCLI(t) // not running
	assert.Equal(t, c.run("down", "--pod-timeout", "5s"), 0)
	assert.DeepEqual(t, c.node.calls, []string{"status", "stop"})
}
