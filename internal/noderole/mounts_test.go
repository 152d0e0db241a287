package noderole

import (
	"io"
	"testing"

	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func TestReportMounts(t *testing.T) {
	t.Parallel()
	const cut, unshared = "1: mounts of the host do not reach the node", "2: a mount does not reach volumes"
	for _, tc := range []struct {
		name, propagation string
		tried             mountsResult
		text, hint        string
		reasons           []string
		ok                bool
	}{
		{"all", "rslave", mountsResult{mountns.Guarantees{HostToInside: true, Inside: true}, nil}, "1 yes, 2 yes, 3 no", "", nil, true},
		{"private host", "rslave", mountsResult{mountns.Guarantees{Inside: true}, nil}, "1 no, 2 yes, 3 no", propagationHint,
			[]string{cut + ": the host's root is private"}, true},
		{"rprivate", "rprivate", mountsResult{mountns.Guarantees{Inside: true}, nil}, "1 no, 2 yes, 3 no",
			"# set mounts.propagation: rslave, then restart the node", []string{cut + ": mounts.propagation is rprivate"}, true},
		{"not shared", "rslave", mountsResult{mountns.Guarantees{HostToInside: true}, []string{unshared}}, "1 yes, 2 no, 3 no", "",
			[]string{unshared}, false},
	} {
		log := logrus.New()
		log.SetOutput(io.Discard)
		n := &nodeRole{log: log, cfg: config.Default(), hub: status.NewHub(status.Status{}, status.Options{})}
		n.cfg.Mounts.Propagation = tc.propagation
		var err error
		n.group, err = supervisor.New(nil, supervisor.Options{})
		assert.NilError(t, err)
		n.reportMounts(tc.tried)
		s := n.hub.Snapshot()
		assert.Equal(t, s.Mounts.Text(), tc.text, tc.name)
		assert.DeepEqual(t, s.Mounts.Reasons, tc.reasons)
		assert.Equal(t, s.Mounts.Hint, tc.hint, tc.name)
		assert.Equal(t, s.Condition(status.ConditionSharedMounts).OK, tc.ok, tc.name)
		n.hub.Close()
	}
}
