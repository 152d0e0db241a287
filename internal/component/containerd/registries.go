package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// registryConfigDir returns the directory in which containerd looks for the settings of registries. Its transfer service, which pulls for
// CRI, reads only one (containerd 2.4).
func registryConfigDir(c *config.NodeConfig) string {
	if len(c.Registries) > 0 {
		return layout.InsideRegistries
	}
	return layout.InsideRegistryConf
}

// endpoint are the settings of one server in hosts.toml.
type endpoint struct {
	Capabilities []string   `toml:"capabilities,omitempty"`
	CA           string     `toml:"ca,omitempty"`
	Client       [][]string `toml:"client,omitempty"`
	SkipVerify   bool       `toml:"skip_verify,omitempty"`
	OverridePath bool       `toml:"override_path,omitempty"`
}

// hostsFiles returns a hosts.toml for each configured registry.
func hostsFiles(c *config.NodeConfig) ([]component.File, error) {
	var files []component.File
	for _, name := range slices.Sorted(maps.Keys(c.Registries)) {
		data, err := hostsFile(c.Registries, name)
		if err != nil {
			return nil, fmt.Errorf("registries.%s: %w", name, err)
		}
		dir := name
		if name == config.AnyRegistry {
			dir = "_default"
		}
		files = append(files, component.File{Path: filepath.Join(layout.InsideRegistries, dir, "hosts.toml"), Mode: 0o600, Data: data})
	}
	return files, nil
}

// fileHeader makes the file of an entry without settings not empty: containerd ignores an empty file.
const fileHeader = "# From registries in the configuration of the node, written at each start.\n"

// hostsFile renders the settings of a registry. containerd tries the mirrors in the order of their tables, then the server. Without a
// server it uses the registry itself.
func hostsFile(registries map[string]config.Registry, name string) ([]byte, error) {
	r := registries[name]
	server, url, mirrors := tlsOf(r), serverURL(name, r), r.Mirrors
	if last := len(mirrors) - 1; r.MirrorsOnly {
		server, url, mirrors = mirrorEndpoint(registries, mirrors[last]), apiURL(mirrors[last]), mirrors[:last]
	}
	b := bytes.NewBufferString(fileHeader)
	if url != "" {
		fmt.Fprintf(b, "server = %q\n", url)
	}
	err := appendTOML(b, server)
	for _, mirror := range mirrors {
		e := mirrorEndpoint(registries, mirror)
		e.Capabilities = []string{"pull", "resolve"}
		fmt.Fprintf(b, "\n[host.%q]\n", apiURL(mirror))
		err = errors.Join(err, appendTOML(b, e))
	}
	return b.Bytes(), err
}

func appendTOML(b *bytes.Buffer, e endpoint) error {
	data, err := toml.Marshal(e)
	b.Write(data)
	return err
}

// serverURL returns the server of a registry, or "" for containerd's default, which has no TLS at localhost, and
// its certificate is not checked there.
func serverURL(name string, r config.Registry) string {
	switch {
	case name == config.AnyRegistry || name == config.DockerHub:
		return ""
	case r.Insecure:
		return "http://" + name
	case r.HasTLS():
		return "https://" + name
	}
	return ""
}

func tlsOf(r config.Registry) endpoint {
	e := endpoint{CA: r.CAFile, SkipVerify: r.SkipVerify}
	if r.CertFile != "" {
		e.Client = [][]string{{r.CertFile, r.KeyFile}}
	}
	return e
}

// mirrorEndpoint returns the settings of a mirror, with those of the entry for its own name.
func mirrorEndpoint(registries map[string]config.Registry, mirror string) (e endpoint) {
	u, err := url.Parse(mirror)
	if err != nil {
		return e // Validate rejects it
	}
	if u.Scheme == "https" {
		e = tlsOf(registries[strings.ToLower(u.Host)])
	}
	_, e.OverridePath = apiPath(u.Path)
	return e
}

// apiPath returns the path of the registry API for the path in the URL of a mirror: a prefix for the names of images, which follows the
// API's root /v2, or a path that already contains the root. override is set if containerd would not use the path as it is.
func apiPath(path string) (api string, override bool) {
	const root = "/v2"
	path = strings.TrimSuffix(path, "/")
	switch {
	case path == "" || path == root:
		return "", false
	case strings.HasSuffix(path, root):
		return path, false
	case strings.HasPrefix(path, root+"/"):
		return path, true
	}
	return root + path, true
}

// apiURL returns the URL of a mirror for containerd.
func apiURL(mirror string) string {
	u, err := url.Parse(mirror)
	if err != nil {
		return mirror // Validate rejects it
	}
	u.Path, _ = apiPath(u.Path)
	return u.String()
}
