package controllermanager

import (
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
)

func TestRender(t *testing.T) {
	t.Parallel()
	fixture.Golden(t, Render)
}

// TestCertificatesOfNodesHaveOneApprover checks that only the node role's approver decides in a multi-node cluster.
func TestCertificatesOfNodesHaveOneApprover(t *testing.T) {
	t.Parallel()
	for e, want := range map[*component.Env]bool{new(fixture.Server()): true, new(fixture.Env()): false} {
		r, err := Render(*e)
		assert.NilError(t, err)
		assert.Equal(t, strings.Contains(strings.Join(r.Args, "\n"), ",-certificatesigningrequest-approving-controller"), want)
	}
}
