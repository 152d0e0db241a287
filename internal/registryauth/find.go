// Package registryauth gives the node the account's logins at image registries: those that docker and podman have stored on the
// host. Passwords are never written to files; they pass from the host through a socket to the kubelet's request for one image.
//
// The parent reads the logins (Finder) and serves them (Server), because the credential helpers of docker and podman are programs of
// the host that need its environment, such as the session bus. The kubelet runs the plugin (Plugin) inside for each image that it
// pulls. Every request reads the files again, so a new login has an effect at once.
package registryauth

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/config/types"
)

// Login is a user name and a password for a registry.
type Login struct{ Username, Password string }

// Finder reads the logins of an account. go-containerregistry's keychain is not used, because it ignores podman's logins if docker's
// file exists, and logins for a part of a registry.
//
// Runs in: parent, or a command on the host.
type Finder struct {
	// Getenv returns a variable of the account's environment.
	Getenv func(string) string
}

// files returns the paths in which docker and podman store logins, the most specific first.
func (f Finder) files() []string {
	home := f.Getenv("HOME")
	or := func(value string, fallback ...string) string {
		if value == "" {
			return filepath.Join(fallback...)
		}
		return value
	}
	paths := []string{
		f.Getenv("REGISTRY_AUTH_FILE"),
		filepath.Join(or(f.Getenv("DOCKER_CONFIG"), home, ".docker"), "config.json"),
		filepath.Join(or(f.Getenv("XDG_RUNTIME_DIR"), "/run/user", strconv.Itoa(os.Getuid())), "containers", "auth.json"),
		filepath.Join(or(f.Getenv("XDG_CONFIG_HOME"), home, ".config"), "containers", "auth.json"),
	}
	return slices.DeleteFunc(paths, func(p string) bool { return !filepath.IsAbs(p) })
}

// Find returns the account's login for an image, or nil if it has none. Errors of one file or credential helper are returned only if
// the others have no login.
func (f Finder) Find(ctx context.Context, image string) (*Login, error) {
	name, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, fmt.Errorf("parse image name %q: %w", image, err)
	}
	var errs []error
	for _, path := range f.files() {
		login, err := findIn(ctx, path, name)
		if login != nil {
			return login, nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read the login for %s from %s: %w", reference.Domain(name), path, err))
		}
	}
	return nil, errors.Join(errs...)
}

// Ports returns the ports in the names of the registries at which the account is logged in, in ascending order. Files that cannot be
// read are skipped.
func (f Finder) Ports() []int {
	var ports []int
	for _, path := range f.files() {
		file, err := load(path)
		if err != nil {
			continue
		}
		for _, key := range slices.AppendSeq(slices.Collect(maps.Keys(file.AuthConfigs)), maps.Keys(file.CredentialHelpers)) {
			host, _, _ := strings.Cut(serverName(key), "/")
			if _, text, err := net.SplitHostPort(host); err == nil {
				if port, err := strconv.Atoi(text); err == nil && port > 0 && port <= maxPort {
					ports = append(ports, port)
				}
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

const maxPort = 65535

// load reads a file. A missing file is empty.
func load(path string) (*configfile.ConfigFile, error) {
	file := configfile.New(path)
	r, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return file, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // only read
	return file, file.LoadFromReader(r)
}

// findIn returns the login for an image that a file has or refers to, or nil.
func findIn(ctx context.Context, path string, name reference.Named) (*Login, error) {
	file, err := load(path)
	if err != nil {
		return nil, err
	}
	stored := map[string]types.AuthConfig{}
	for key, auth := range file.AuthConfigs {
		if auth != (types.AuthConfig{ServerAddress: key}) { // with a helper, docker stores the key only
			stored[serverName(key)] = auth
		}
	}
	// podman stores logins for a part of a registry, HOST/PATH. The longest one counts.
	key := reference.Domain(name) + "/" + reference.Path(name)
	for {
		if auth, ok := stored[key]; ok {
			return fromAuth(auth)
		}
		cut := strings.LastIndexByte(key, '/')
		if cut < 0 {
			break
		}
		key = key[:cut]
	}
	return askHelper(ctx, file, reference.Domain(name))
}

// fromAuth returns a stored login.
func fromAuth(auth types.AuthConfig) (*Login, error) {
	if auth.Username == "" || auth.Password == "" {
		return nil, errToken
	}
	return &Login{Username: auth.Username, Password: auth.Password}, nil
}

// errToken is returned for a login that the kubelet cannot pass to the container runtime.
var errToken = errors.New("the login is a token without a user name, which Kubernetes cannot use: log in with a user name and an access token as password")

const (
	dockerHub = "docker.io"
	// hubKey is the name under which docker stores the login at Docker Hub.
	hubKey = "https://index.docker.io/v1/"
)

// serverName returns the name of a registry in image references, or of a part of it, from a key of a file. docker and older programs store
// some keys as URLs.
func serverName(key string) string {
	name := key
	if _, rest, ok := strings.Cut(key, "://"); ok {
		name, _, _ = strings.Cut(rest, "/")
	}
	name = strings.TrimSuffix(name, "/")
	switch name {
	case "index.docker.io", "registry-1.docker.io":
		return dockerHub
	}
	return name
}
