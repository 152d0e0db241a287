package main

import (
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// TestKnownWarnings checks that `up` shows a warning of the node once, and later only the number.
func TestKnownWarnings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		known         []string
		args          []string
		shown, hidden string
	}{
		{nil, []string{"up"}, "warning: limits of io are not enforced", ""},
		{[]string{"limits of io are not enforced"}, []string{"up"}, "", "1 warning is the same as at the last start; to show: rootlessnode status\n"},
		{[]string{"limits of io are not enforced"}, []string{"up", "--verbose"}, "warning: limits of io are not enforced", ""},
	} {
		c := newCLI(t)
		c.known, c.node.statuses = tc.known, []status.Status{full()}
		assert.Equal(t, c.run(tc.args...), 0, c.err.String())
		assert.Check(t, is.Contains(c.out.String(), tc.shown))
		assert.Check(t, is.Contains(c.err.String(), tc.hidden))
		assert.Check(t, is.Equal(is.Contains(c.out.String(), "limits of io")().Success(), tc.shown != ""))
		assert.Check(t, is.Equal(c.node.options.HiddenWarnings == nil, len(tc.args) > 1))
	}
}

func TestUpTTL(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.node.statuses = upStatuses()
	assert.Equal(t, c.run("up", "--ttl", "2h"), 0, c.err.String())
	assert.Equal(t, c.node.options.TTL, 2*time.Hour)
	assert.Equal(t, c.run("up", "--ttl", "-1s"), 2)
	c.node.statuses[3].ParentPID = 7
	assert.Equal(t, c.run("up", "--ttl", "2h"), 1)
	assert.Check(t, is.Contains(c.err.String(), "is already running, and only a start can limit its time"))

	c.out.Reset()
	c.node.statuses[3].EndsAt = at(10 + 3600)
	assert.Equal(t, c.run("status"), 0)
	assert.Check(t, is.Contains(c.out.String(), "ends          in 1h0m   (up --ttl)\n"))
}

// TestStatusHidesSteps checks that status shows steps of the node only if they are not finished.
func TestStatusHidesSteps(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	s := full()
	s.Components = append(s.Components, status.Component{Name: "cni", State: status.Done}, status.Component{Name: "images", State: status.Backoff})
	c.node.statuses = []status.Status{s}
	assert.Equal(t, c.run("status"), 0)
	assert.Check(t, !is.Contains(c.out.String(), "\ncni ")().Success(), c.out.String())
	assert.Check(t, is.Contains(c.out.String(), "\nimages "))
	assert.Check(t, is.Contains(c.out.String(), "\nkubelet "))
	c.out.Reset()
	assert.Equal(t, c.run("status", "--all"), 0)
	assert.Check(t, is.Contains(c.out.String(), "\ncni "))
}
