package node

import (
	"context"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
)

// TestAwaitNetwork: a node of a cluster waits for its address until that is there or nobody wants it any more; another does not wait.
func TestAwaitNetwork(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		nodeIP, server string
		waits          bool
	}{
		"alone":             {"192.0.2.77", "", false},
		"the address is":    {"127.0.0.1", "https://192.0.2.1:6443", false},
		"the address isn't": {"192.0.2.77", "https://192.0.2.1:6443", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := config.Default()
			c.NodeIP, c.Join.Server = tc.nodeIP, tc.server
			c.Complete(config.HostFacts{Hostname: "host"})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			log, hook := test.NewNullLogger()
			log.AddHook(ends(cancel))
			n := &Node{log: log}
			n.cfg.Store(c)
			n.awaitNetwork(ctx)
			assert.Equal(t, len(hook.AllEntries()) == 1, tc.waits)
			assert.Equal(t, ctx.Err() != nil, tc.waits)
		})
	}
}

// ends is a hook that does something at the first word.
type ends func()

func (ends) Levels() []logrus.Level     { return logrus.AllLevels }
func (e ends) Fire(*logrus.Entry) error { e(); return nil }
