package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// AnyRegistry is the key of Registries for all registries without an entry.
const AnyRegistry = "*"

// DockerHub is the name of the registry of images without a registry in their name.
const DockerHub = "docker.io"

// LocalRegistry is the registry that runs inside the node.
type LocalRegistry struct {
	// Runs a registry for images on this node. The host pushes to localhost:PORT/NAME, and pods use the same name. Its images are in
	// the data dir. See docs/registries.md.
	Enabled bool `json:"enabled" default:"false"`
	// The port, on the loopback of the host and in the node.
	Port int `json:"port" default:"5000" check:"range 1 65535"`
}

// Registry configures how images of one registry are pulled.
type Registry struct {
	// URLs that are tried in this order before the registry itself: https://HOST[:PORT][/PREFIX], or http:// for a mirror without
	// TLS. With a PREFIX, the image NAME is pulled as PREFIX/NAME. For its certificate, a mirror has an entry with its own name.
	Mirrors []string `json:"mirrors,omitempty" example:"[https://mirror.example.com]"`
	// Never uses the registry itself, only its mirrors.
	MirrorsOnly bool `json:"mirrorsOnly,omitempty" example:"true"`
	// The path of a PEM file of authorities, in addition to those of the host, that may sign the registry's certificate.
	CAFile string `json:"caFile,omitempty" example:"/home/user/ca.crt"`
	// The path of a PEM file with the certificate of the node, for a registry that requires one.
	CertFile string `json:"certFile,omitempty" example:"/home/user/client.crt"`
	// The path of a PEM file with the key of certFile.
	KeyFile string `json:"keyFile,omitempty" example:"/home/user/client.key"`
	// Does not check the registry's certificate.
	SkipVerify bool `json:"skipVerify,omitempty" example:"true"`
	// Uses HTTP without TLS.
	Insecure bool `json:"insecure,omitempty" example:"true"`
}

// HasTLS reports whether the entry has settings for TLS.
func (r Registry) HasTLS() bool {
	return r.CAFile != "" || r.CertFile != "" || r.KeyFile != "" || r.SkipVerify
}

// HostPorts returns the TCP ports on the host's loopback that the node may use: network.hostPorts, and those of registries and
// mirrors at localhost or HostName.
func (c *NodeConfig) HostPorts() []int {
	ports := slices.Clone(c.Network.HostPorts)
	for _, u := range c.registryURLs() {
		port, ok := loopbackPort(u)
		own := c.LocalRegistry.Enabled && port == c.LocalRegistry.Port // inside
		if ok && !own && !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return ports
}

// RegistryPorts returns the ports in the names of the configured registries, in ascending order.
func (c *NodeConfig) RegistryPorts() []int {
	var ports []int
	if c.LocalRegistry.Enabled {
		ports = append(ports, c.LocalRegistry.Port)
	}
	for name := range c.Registries {
		if _, text, err := net.SplitHostPort(name); err == nil {
			if port, err := strconv.Atoi(text); err == nil {
				ports = append(ports, port)
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// MirrorImage returns the name under which a mirror has the image path of a registry: HOST[/PREFIX]/path.
func MirrorImage(mirror, path string) string {
	u, err := url.Parse(mirror)
	if err != nil {
		return "" // Validate rejects it
	}
	prefix := strings.TrimSuffix(u.Path, "/")
	if strings.HasSuffix(prefix, registryAPI) {
		prefix = "" // the root of an API, which is not a part of names
	}
	return u.Host + strings.TrimPrefix(prefix, registryAPI) + "/" + path
}

// registryAPI is the root of the registry API in URLs.
const registryAPI = "/v2"

// registryURLs returns the URLs of the registries and of their mirrors, in a stable order.
func (c *NodeConfig) registryURLs() []*url.URL {
	var texts []string
	for _, name := range sortedKeys(c.Registries) {
		r := c.Registries[name]
		texts = append(texts, r.Mirrors...)
		switch {
		case r.MirrorsOnly || name == AnyRegistry:
		case r.Insecure:
			texts = append(texts, "http://"+name)
		default:
			texts = append(texts, "https://"+name)
		}
	}
	var out []*url.URL
	for _, text := range texts {
		if u, err := url.Parse(text); err == nil {
			out = append(out, u)
		}
	}
	return out
}

// loopbackPort returns the port of u if it is on the host's loopback.
func loopbackPort(u *url.URL) (port int, ok bool) {
	host := strings.ToLower(u.Hostname())
	if ip, err := netip.ParseAddr(host); host != "localhost" && host != HostName && (err != nil || !ip.IsLoopback()) {
		return 0, false
	}
	switch text := u.Port(); {
	case text != "":
		port, _ = strconv.Atoi(text) // Validate rejects others
	case u.Scheme == "http":
		port = 80
	default:
		port = 443
	}
	return port, port > 0
}

func validateRegistries(c *NodeConfig, fs *faults) {
	if len(c.Registries) == 0 {
		return
	}
	if c.CRI.Runtime != RuntimeContainerd {
		hint := "remove registries, and configure the external runtime instead"
		if c.CRI.Runtime == RuntimeCRIO {
			hint = "remove registries, and set crio.registriesConf instead"
		}
		fs.add("registries", hint, "has no effect with cri.runtime %s", c.CRI.Runtime)
	}
	if c.Containerd.RegistryConfigDir != "" {
		fs.add("registries", "write the settings of registries to hosts.toml files in containerd.registryConfigDir, or remove that setting",
			"cannot be used together with containerd.registryConfigDir, because containerd reads one directory only")
	}
	for _, name := range sortedKeys(c.Registries) {
		validateRegistry(fs, name, c.Registries[name])
	}
}

func validateRegistry(fs *faults, name string, r Registry) {
	at := "registries." + name
	if fault := registryNameFault(name); fault != "" {
		fs.add(at, "", "%s", fault)
	}
	for i, mirror := range r.Mirrors {
		if fault := mirrorFault(mirror); fault != "" {
			fs.add(fmt.Sprintf("%s.mirrors[%d]", at, i), "", "%q: %s", mirror, fault)
		}
	}
	for _, f := range []struct{ field, path string }{{"caFile", r.CAFile}, {"certFile", r.CertFile}, {"keyFile", r.KeyFile}} {
		if f.path != "" {
			validateRegistryFile(fs, at+"."+f.field, f.path)
		}
	}
	switch {
	case r.MirrorsOnly && len(r.Mirrors) == 0:
		fs.add(at+".mirrorsOnly", "", "needs mirrors")
	case (r.CertFile == "") != (r.KeyFile == ""):
		fs.add(at, "", "certFile and keyFile must be set together")
	case r.Insecure && r.HasTLS():
		fs.add(at+".insecure", "", "caFile, certFile, keyFile and skipVerify have no effect without TLS: remove them, or insecure")
	case r.Insecure && name == AnyRegistry:
		fs.add(at+".insecure", "", "must be set for each registry")
	case r.SkipVerify && r.CAFile != "":
		fs.add(at+".skipVerify", "", "caFile has no effect if the certificate is not checked: remove one of them")
	}
}

// registryNameFault returns the reason why name is not the registry of an image reference, or "".
func registryNameFault(name string) string {
	switch name {
	case AnyRegistry, DockerHub:
		return ""
	case "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com":
		return "use docker.io, the name of this registry in image references"
	}
	u, err := url.Parse("https://" + name)
	switch {
	case err != nil || u.Host != name || u.Hostname() == "" || strings.ToLower(name) != name || strings.HasSuffix(name, ":"):
		return `must be HOST or HOST:PORT in lower case, as in image references, without a scheme and a path, or "*"`
	case !validPort(u.Port()):
		return "the port must be between 1 and 65535"
	case !strings.ContainsAny(name, ".:") && name != "localhost":
		return "must contain a dot or a port: container runtimes take other names for a part of the name on Docker Hub"
	}
	return ""
}

func mirrorFault(mirror string) string {
	u, err := url.Parse(mirror)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return "must be a URL such as https://mirror.example.com or https://mirror.example.com/PREFIX"
	case u.User != nil:
		return "must not contain a password; log in with docker or podman instead"
	case u.RawQuery != "" || u.Fragment != "" || strings.ContainsFunc(mirror, isControl):
		return "must not have a query or a fragment"
	case !validPort(u.Port()):
		return "the port must be between 1 and 65535"
	}
	return ""
}

// validPort reports whether the text is empty or a port number.
func validPort(text string) bool {
	port, err := strconv.Atoi(text)
	return text == "" || err == nil && 1 <= port && port <= maxPort
}

const maxPort = 65535

// hiddenDirs are directories of the node that hide those of the host, and in which users keep certificates.
func hiddenDirs() []string {
	return []string{
		layout.InsideContainersConf, filepath.Dir(layout.InsideRegistryConf), "/etc/crio", layout.InsideKubernetes, "/run/user",
		filepath.Dir(layout.InsideStorageRun), layout.InsideCRIORoot, layout.InsideContainerdRoot, layout.InsideContainerdRun,
	}
}

func validateRegistryFile(fs *faults, field, path string) {
	if !isAbsolute(path) {
		fs.add(field, "", "%q: must be an absolute path without . or .. elements or a trailing slash", path)
		return
	}
	for _, dir := range hiddenDirs() {
		if strings.HasPrefix(path, dir+"/") {
			fs.add(field, "copy the file below your home directory and set the path of the copy",
				"%s: not visible inside the node, which has its own %s", path, dir)
		}
	}
}
