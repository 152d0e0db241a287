package arrows

import (
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
)

// TestSecurityPageListsThePorts checks that the listeners in docs/security.md have a row for each port of a component. The kernel serves the
// UDP port of the pod network. TestCluster compares the page with a running node.
func TestSecurityPageListsThePorts(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	assert.NilError(t, err)
	c := config.Default()
	c.NetworkPolicy, c.LocalRegistry.Enabled = config.NetworkPolicyKube, true
	for _, e := range catalogue.Enabled(c) {
		if e.Ports == nil {
			continue
		}
		for _, p := range e.Ports(c) {
			process := path.Base(e.Programs[0])
			if p.Proto == "udp" {
				process = "kernel"
			}
			found := false
			for line := range strings.Lines(string(page)) {
				cells := strings.Split(line, " | ")
				found = found || len(cells) > 3 && cells[0] == "| node" && cells[2] == process &&
					strings.HasPrefix(cells[1], "`"+p.Proto+" ") && strings.HasSuffix(cells[1], ":"+strconv.Itoa(p.Number)+"`")
			}
			assert.Check(t, found, "docs/security.md has no listener of %s on %s port %d", process, p.Proto, p.Number)
		}
	}
}
