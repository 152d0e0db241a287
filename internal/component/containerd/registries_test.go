package containerd

import (
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
)

// TestRegistries checks the hosts.toml files of all kinds of entries, and that containerd reads their directory.
func TestRegistries(t *testing.T) {
	t.Parallel()
	e := fixture.Env()
	e.Config.Registries = map[string]config.Registry{
		"*":         {Mirrors: []string{"http://localhost:5000"}},
		"docker.io": {Mirrors: []string{"https://z.example.com/hub/", "https://a.example.com", "https://c.example.com/api/docker/hub/v2", "https://d.example.com/v2/hub"}},
		"a.example.com": {
			CAFile: "/ca.crt", CertFile: "/client.crt", KeyFile: "/client.key", Mirrors: []string{"http://a.example.com"},
		},
		"localhost:5443":   {CAFile: "/ca.crt"},
		"192.0.2.1:5000":   {Insecure: true},
		"quay.io":          {SkipVerify: true},
		"internal.example": {Mirrors: []string{"https://z.example.com", "https://a.example.com/q"}, MirrorsOnly: true},
		"plain.example":    {},
	}
	r, err := Render(e)
	assert.NilError(t, err)
	var text strings.Builder
	for _, f := range r.Files[1:] {
		text.WriteString("# " + f.Path + "\n" + string(f.Data) + "\n")
		var decoded map[string]any
		assert.NilError(t, toml.Unmarshal(f.Data, &decoded), f.Path)
	}
	golden.Assert(t, text.String(), "registries.golden")
	assert.Equal(t, strings.Count(string(r.Files[0].Data), "config_path = '/run/rootlessnode/registries'"), 2)
}
