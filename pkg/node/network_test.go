package node

import (
	"context"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
)

// TestAwaitNetwork checks that a node of a multi-node cluster waits for its address until the context ends, and that a single node
// does not wait.
func TestAwaitNetwork(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		nodeIP, server string
		waits          bool
	}{
		"single node":     {"192.0.2.77", "", false},
		"address present": {"127.0.0.1", "https://192.0.2.1:6443", false},
		"address missing": {"192.0.2.77", "https://192.0.2.1:6443", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := config.Default()
			c.NodeIP, c.Join.Server = tc.nodeIP, tc.server
			c.Complete(config.HostFacts{Hostname: "host"})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			log, hook := test.NewNullLogger()
			log.AddHook(logHook(cancel))
			n := &Node{log: log}
			n.cfg.Store(c)
			awaitNetwork(ctx, n)
			assert.Equal(t, len(hook.AllEntries()) == 1, tc.waits)
			assert.Equal(t, ctx.Err() != nil, tc.waits)
		})
	}
}

// logHook is called for every log entry.
type logHook func()

func (logHook) Levels() []logrus.Level     { return logrus.AllLevels }
func (h logHook) Fire(*logrus.Entry) error { h(); return nil }
