package child

import (
	"io"
	"testing"

	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
	"github.com/rootlessnode/rootlessnode/pkg/status"
	"github.com/rootlessnode/rootlessnode/pkg/supervisor"
)

func TestTellMounts(t *testing.T) {
	t.Parallel()
	const cut, unshared = "1: the root inside receives nothing from the host's", "2: a mount does not reach volumes"
	for _, tc := range []struct {
		name, propagation string
		tried             mountsTried
		text, hint        string
		reasons           []string
		ok                bool
	}{
		{"all", "rslave", mountsTried{mountns.Guarantees{HostToInside: true, Inside: true}, nil}, "1 yes, 2 yes, 3 no", "", nil, true},
		{"private host", "rslave", mountsTried{mountns.Guarantees{Inside: true}, nil}, "1 no, 2 yes, 3 no", hostRemedy,
			[]string{cut + ": the host's root is private"}, true},
		{"rprivate", "rprivate", mountsTried{mountns.Guarantees{Inside: true}, nil}, "1 no, 2 yes, 3 no",
			"# set mounts.propagation: rslave, and start the node anew", []string{cut + ": mounts.propagation is rprivate"}, true},
		{"not shared", "rslave", mountsTried{mountns.Guarantees{HostToInside: true}, []string{unshared}}, "1 yes, 2 no, 3 no", "",
			[]string{unshared}, false},
	} {
		log := logrus.New()
		log.SetOutput(io.Discard)
		n := &nodeRole{log: log, cfg: config.Default(), hub: status.NewHub(status.Status{}, status.Options{})}
		n.cfg.Mounts.Propagation = tc.propagation
		var err error
		n.group, err = supervisor.New(nil, supervisor.Options{})
		assert.NilError(t, err)
		n.tellMounts(tc.tried)
		s := n.hub.Snapshot()
		assert.Equal(t, s.Mounts.Text(), tc.text, tc.name)
		assert.DeepEqual(t, s.Mounts.Reasons, tc.reasons)
		assert.Equal(t, s.Mounts.Hint, tc.hint, tc.name)
		assert.Equal(t, s.Condition(status.ConditionSharedMounts).OK, tc.ok, tc.name)
		n.hub.Close()
	}
}
