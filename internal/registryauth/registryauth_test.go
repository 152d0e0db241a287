package registryauth

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"
	credentialprovider "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// account is a home directory with files of docker and podman.
type account struct {
	t    *testing.T
	home string
	env  map[string]string
}

func newAccount(t *testing.T) account {
	t.Helper()
	home := t.TempDir()
	return account{t, home, map[string]string{"HOME": home, "XDG_RUNTIME_DIR": home + "/run"}}
}

func (a account) finder() Finder {
	return Finder{Getenv: func(key string) string { return a.env[key] }}
}

// userOf returns the user of the logins at a registry that write stores. The password is "secret".
func userOf(registry string) string { return "user-" + strings.ReplaceAll(registry, ":", "_") }

// write writes a file with logins.
func (a account) write(name string, registries ...string) {
	a.t.Helper()
	auths := map[string]any{}
	for _, r := range registries {
		auths[r] = map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(userOf(r) + ":secret"))}
	}
	a.writeJSON(name, map[string]any{"auths": auths})
}

func (a account) writeJSON(name string, value any) {
	a.t.Helper()
	data, err := json.Marshal(value)
	assert.NilError(a.t, err)
	path := filepath.Join(a.home, name)
	assert.NilError(a.t, os.MkdirAll(filepath.Dir(path), 0o700))
	assert.NilError(a.t, os.WriteFile(path, data, 0o600))
}

func (a account) found(image string) string {
	a.t.Helper()
	login, err := a.finder().Find(a.t.Context(), image)
	assert.NilError(a.t, err)
	if login == nil {
		return ""
	}
	assert.Equal(a.t, login.Password, "secret")
	return login.Username
}

const (
	dockerFile = ".docker/config.json"
	podmanFile = "run/containers/auth.json"
)

// TestFind checks the names under which docker and podman store logins.
func TestFind(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	assert.Equal(t, a.found("busybox"), "", "without files")
	a.write(dockerFile, hubKey, "localhost:5443", "https://old.example.com/v1/", "quay.io")
	a.write(podmanFile, "quay.io/team", "quay.io/team/app", "registry.example.com", "docker.io")
	for image, want := range map[string]string{
		"busybox":                        hubKey,
		"docker.io/library/busybox:1.37": hubKey,
		"localhost:5443/app:1":           "localhost:5443",
		"localhost:5000/app:1":           "",
		"old.example.com/a/b":            "https://old.example.com/v1/",
		"registry.example.com/a@sha256:" + strings.Repeat("0a", 32): "registry.example.com",
		"quay.io/team/app":                 "quay.io", // docker's file comes first
		"example.com/registry.example.com": "",
	} {
		if want != "" {
			want = userOf(want)
		}
		assert.Equal(t, a.found(image), want, image)
	}
	assert.NilError(t, os.Remove(filepath.Join(a.home, dockerFile)))
	for image, want := range map[string]string{
		"quay.io/team/app:2": userOf("quay.io/team/app"), "quay.io/team/application": userOf("quay.io/team"), "quay.io/other": "",
		"busybox": userOf("docker.io"),
	} {
		assert.Equal(t, a.found(image), want, image)
	}
}

// TestFindFiles checks the files that variables name, and podman's permanent file.
func TestFindFiles(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	a.write(".config/containers/auth.json", "a.example")
	assert.Equal(t, a.found("a.example/x"), userOf("a.example"))
	a.write("other/config.json", "b.example")
	a.env["DOCKER_CONFIG"] = a.home + "/other"
	a.write("mine.json", "c.example:5000")
	a.env["REGISTRY_AUTH_FILE"] = a.home + "/mine.json"
	assert.Equal(t, a.found("b.example/x"), userOf("b.example"))
	assert.Equal(t, a.found("c.example:5000/x"), userOf("c.example:5000"))
	assert.DeepEqual(t, a.finder().Ports(), []int{5000})
}

// TestFindWithHelper checks credential helpers of both kinds, also one that fails.
func TestFindWithHelper(t *testing.T) {
	a := newAccount(t)
	assert.NilError(t, os.Mkdir(filepath.Join(a.home, "bin"), 0o700))
	testutil.Script(t, filepath.Join(a.home, "bin/docker-credential-one"), `
read -r server
case $server in
https://index.docker.io/v1/ | helped.example) echo '{"ServerURL":"'$server'","Username":"one","Secret":"secret"}' ;;
token.example) echo '{"ServerURL":"'$server'","Username":"<token>","Secret":"secret"}' ;;
broken.example) echo 'the keyring is locked'; exit 1 ;;
*) echo 'credentials not found in native keychain'; exit 1 ;;
esac
`)
	t.Setenv("PATH", a.home+"/bin:"+os.Getenv("PATH"))
	a.writeJSON(dockerFile, map[string]any{
		"auths": map[string]any{"helped.example": map[string]any{}}, "credsStore": "one", "credHelpers": map[string]string{"gone.example": "gone"},
	})
	a.write(podmanFile, "other.example", "gone.example")
	for image, want := range map[string]string{
		"helped.example/x": "one", "busybox": "one", "other.example/x": userOf("other.example"), "gone.example/x": userOf("gone.example"), "none.example/x": "",
	} {
		assert.Equal(t, a.found(image), want, image)
	}
	for image, want := range map[string]string{
		"broken.example/x": "the keyring is locked", "token.example/x": "which Kubernetes cannot use", "A": "invalid reference format",
	} {
		_, err := a.finder().Find(t.Context(), image)
		assert.ErrorContains(t, err, want, image)
	}
	assert.NilError(t, os.WriteFile(filepath.Join(a.home, podmanFile), []byte(`{"auths":`), 0o600))
	_, err := a.finder().Find(t.Context(), "none.example/x")
	assert.ErrorContains(t, err, "auth.json")
}

// serve starts a server and returns its socket.
func serve(t *testing.T, s Server) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ra") // a socket's path must be short
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, os.RemoveAll(dir)) })
	log := logrus.New()
	log.SetOutput(io.Discard)
	s.Log = log
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	assert.NilError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() { cancel(); assert.Check(t, <-done) })
	return filepath.Join(dir, "s")
}

// TestPlugin checks the kubelet's protocol, the logins of mirrors, and that new logins need no restart.
func TestPlugin(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	socket := serve(t, Server{Finder: a.finder(), Registries: map[string]config.Registry{
		"docker.io":      {Mirrors: []string{"https://mirror.example:8443/hub"}},
		"closed.example": {Mirrors: []string{"https://mirror.example:8443"}, MirrorsOnly: true},
		"*":              {Mirrors: []string{"https://all.example"}},
	}})
	ask := func(image string) (map[string]credentialprovider.AuthConfig, error) {
		var out bytes.Buffer
		request := fmt.Sprintf(`{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderRequest","image":%q}`, image)
		if err := Plugin(socket, strings.NewReader(request), &out); err != nil {
			return nil, err
		}
		var r credentialprovider.CredentialProviderResponse
		assert.NilError(t, json.Unmarshal(out.Bytes(), &r))
		assert.Equal(t, r.Kind+" "+r.APIVersion, "CredentialProviderResponse credentialprovider.kubelet.k8s.io/v1")
		assert.Equal(t, r.CacheDuration.Duration.String(), "0s")
		return r.Auth, nil
	}
	users := func(image string) (list []string) {
		auth, err := ask(image)
		assert.NilError(t, err)
		keys := slices.Sorted(maps.Keys(auth))
		slices.Reverse(keys) // as the kubelet
		for _, k := range keys {
			assert.Assert(t, strings.HasPrefix(image, k))
			list = append(list, auth[k].Username)
		}
		return list
	}
	assert.DeepEqual(t, users("docker.io/library/busybox"), []string(nil))
	a.write(dockerFile, hubKey, "mirror.example:8443/hub", "mirror.example:8443", "closed.example", "all.example")
	assert.DeepEqual(t, users("docker.io/library/busybox"), []string{userOf("mirror.example:8443/hub"), userOf(hubKey)})
	assert.DeepEqual(t, users("closed.example/x"), []string{userOf("mirror.example:8443")})
	assert.DeepEqual(t, users("else.example/x"), []string{userOf("all.example")})
	assert.NilError(t, os.WriteFile(filepath.Join(a.home, dockerFile), []byte("{"), 0o600))
	_, err := ask("docker.io/library/busybox")
	assert.ErrorContains(t, err, "config.json")
	assert.ErrorContains(t, Plugin(socket, strings.NewReader("nonsense"), io.Discard), "decode the request")
	assert.ErrorContains(t, Plugin(socket+"x", strings.NewReader("{}"), io.Discard), "ask the host for the login")
}
