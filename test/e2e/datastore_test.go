package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// smallQuota sets the smallest quota of etcd.
var smallQuota = []string{"--set", "controlPlane.etcdQuotaBytes=67108864"}

// datastoreIsFreed fills etcd's database as a client does, until the data in use fills the quota. The node warns first, and writes work
// again soon after the client has deleted the data.
func (n *testNode) datastoreIsFreed() {
	n.t.Helper()
	condition := func() *status.Condition {
		s := n.status()
		return s.Condition(status.ConditionDatastore)
	}
	round := 0
	eventually(n.t, podLimit, "the data fills the quota", func() error {
		err := n.createConfigMaps(round)
		round++
		if c := condition(); c.OK || c.Reason != "QuotaExceeded" {
			return fmt.Errorf("%+v; create: %w", c, err)
		}
		assert.ErrorContains(n.t, err, "database space exceeded")
		return nil
	})
	c := condition()
	assert.Assert(n.t, cmp.Contains(c.Hint, "up --set controlPlane.etcdQuotaBytes=134217728"))
	s := n.status()
	assert.Equal(n.t, s.State, status.NodeDegraded)
	text := n.run(podLimit, "events")
	warned, refused := strings.Index(text, "node/Datastore           met -> warning"), strings.Index(text, "warning -> not met")
	assert.Assert(n.t, 0 <= warned && warned < refused, "%s", text)

	n.kubectl("delete", "configmap", "-l", "fill=yes", "--wait=false")
	eventually(n.t, time.Minute, "writes work again", func() error {
		_, stderr, code := n.try(podLimit, "kubectl", "create", "configmap", "after")
		if code != 0 {
			return fmt.Errorf("%s", stderr)
		}
		return nil
	})
	eventually(n.t, podLimit, "the condition is true", func() error { // the warning lasts until the history is a minute old
		if c := condition(); !c.OK {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

// createConfigMaps creates ConfigMaps of 7 MB in total.
func (n *testNode) createConfigMaps(round int) error {
	n.t.Helper()
	type object map[string]any
	var items []object
	for i := range 8 {
		var content [450_000]byte
		_, _ = rand.Read(content[:]) // never fails
		items = append(items, object{
			"apiVersion": "v1", "kind": "ConfigMap", "data": object{"content": hex.EncodeToString(content[:])},
			"metadata": object{"name": fmt.Sprintf("fill-%d-%d", round, i), "labels": object{"fill": "yes"}},
		})
	}
	list, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": items})
	assert.NilError(n.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), podLimit)
	defer cancel()
	cmd := n.command(ctx, "kubectl", "create", "-f", "-")
	cmd.Stdin = bytes.NewReader(list)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
