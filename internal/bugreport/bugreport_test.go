package bugreport

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// fakeNode is a node with the given results.
type fakeNode struct {
	cfg        *config.NodeConfig
	kubeconfig string
	status     *status.Status
	events     []status.Event
	findings   []preflight.Finding
	err        error
}

func (n *fakeNode) Config() *config.NodeConfig                         { return n.cfg }
func (n *fakeNode) Kubeconfig() string                                 { return n.kubeconfig }
func (n *fakeNode) Check(context.Context) ([]preflight.Finding, error) { return n.findings, n.err }
func (n *fakeNode) Status(context.Context) (*status.Status, error)     { return n.status, n.err }
func (n *fakeNode) Events(_ context.Context, _ bool, fn func(status.Event) error) error {
	for _, e := range n.events {
		if err := fn(e); err != nil {
			return err
		}
	}
	return n.err
}

// newInput returns a stopped node with a data dir.
func newInput(t *testing.T) (Input, *fakeNode) {
	t.Helper()
	root := t.TempDir()
	cfg := config.Default()
	n := &fakeNode{cfg: cfg, status: &status.Status{Name: "default", State: status.NodeStopped}}
	in := Input{
		Name: "default", Version: "v1.2.3", Node: n, Runtime: layout.NewRuntime(filepath.Join(root, "run"), "default"),
		Data: layout.NewData(filepath.Join(root, "data")), Registry: layout.RegistryEntry(filepath.Join(root, "share"), "default"),
		Home: filepath.Join(root, "home"), Env: []string{"PATH=/usr/bin"}, Now: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
	}
	n.kubeconfig = in.Data.AdminKubeconfig()
	return in, n
}

func put(t *testing.T, path, text string) {
	t.Helper()
	assert.NilError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	assert.NilError(t, os.WriteFile(path, []byte(text), 0o600))
}

// unpack returns the files of an archive by name, without its directory.
func unpack(t *testing.T, b []byte) map[string]string {
	t.Helper()
	gz, err := gzip.NewReader(bytes.NewReader(b))
	assert.NilError(t, err)
	r := tar.NewReader(gz)
	files := map[string]string{}
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		assert.NilError(t, err)
		assert.Equal(t, h.Mode, int64(0o600))
		text, err := io.ReadAll(r)
		assert.NilError(t, err)
		name, ok := strings.CutPrefix(h.Name, "rootlessnode-report-default/")
		assert.Assert(t, ok, h.Name)
		files[name] = string(text)
	}
}

func reported(t *testing.T, in Input) (map[string]string, *Summary) {
	t.Helper()
	var b bytes.Buffer
	s, err := Write(t.Context(), &b, in)
	assert.NilError(t, err)
	return unpack(t, b.Bytes()), s
}

// planted are secrets of many kinds. Each is put into several places.
type planted map[string]string

func (p planted) add(kind, secret string) string { p[kind] = secret; return secret }

// encodings returns the forms in which a secret is put into logs.
func encodings(secret string) []string {
	quoted, _ := json.Marshal(secret) // a string is always valid
	all := []string{secret, url.QueryEscape(secret), url.PathEscape(secret), strings.Trim(string(quoted), `"`)}
	for _, around := range []string{"", "x", "xy", "user:"} {
		all = append(all, base64.StdEncoding.EncodeToString([]byte(around+secret)), base64.RawURLEncoding.EncodeToString([]byte(around+secret+around)))
	}
	return all
}

// traces returns the texts that show a secret if one of them is in the archive.
func traces(secret string) []string {
	all := append(encodings(secret), hex.EncodeToString([]byte(secret)))
	for _, before := range []string{"", "x", "xy"} { // the middle is independent of the bytes around the secret
		text := base64.StdEncoding.EncodeToString([]byte(before + secret))
		all = append(all, text[4:len(text)-4])
	}
	return all
}

// TestNoSecrets plants secrets of many kinds in every part of a report and looks for all forms of them in the archive.
func TestNoSecrets(t *testing.T) {
	t.Parallel()
	in, n := newInput(t)
	p := planted{}
	key := func(kind string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: []byte(p.add(kind, strings.Repeat("binary "+kind+" ", 12)))}))
	}
	// Files of the node and of the account, whose content is not in the report, but may be repeated in logs.
	put(t, filepath.Join(in.Data.PKI(), "ca.key"), key("authority"))
	put(t, filepath.Join(in.Data.PKI(), "etcd", "server.key"), key("etcd"))
	put(t, filepath.Join(in.Data.KubeletPKI(), "kubelet-client-current.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"+key("worker"))
	put(t, filepath.Join(in.Data.PKI(), "encryption-config.yaml"), "kind: EncryptionConfiguration\nresources:\n- providers:\n  - secretbox: {keys: [{name: key1, secret: "+
		base64.StdEncoding.EncodeToString([]byte(p.add("encryption key", "32 bytes that encrypt the data..")))+"}]}\n")
	put(t, in.Data.BootstrapKubeconfig(), "users: [{user: {token: "+p.add("bootstrap", "abcdef.0123456789abcdef")+"}}]")
	put(t, filepath.Join(in.Home, ".docker", "config.json"), `{"auths": {"r.example": {"auth": "`+
		base64.StdEncoding.EncodeToString([]byte("me:"+p.add("registry password", "registry-Pa55")))+`"}}}`)
	n.cfg.Containerd.RegistryConfigDir = filepath.Join(in.Home, "certs.d")
	put(t, filepath.Join(n.cfg.Containerd.RegistryConfigDir, "r.example", "hosts.toml"), "[host.\"https://r.example\".header]\n  Authorization = [\""+
		p.add("registry header", "custom-scheme opaque-credential")+"\"]\n")
	in.Env = append(in.Env, "DB_PASSWORD="+p.add("environment", "corr3ct horse, battery"), "HTTPS_PROXY=http://user:"+p.add("proxy", "pr0xyPa55")+"@p.example:3128")
	api := &fakeAPI{pods: fmt.Sprintf(`{"items": [{"metadata": {"namespace": "default", "name": "web", "annotations": {"note": %q}}, "spec": {"containers": [
		{"name": "c", "image": "i", "args": [%q], "env": [{"name": "API_TOKEN", "value": %q}, {"name": "PLAIN", "value": %q}]}]}, "status": {"phase": "Running"}}]}`,
		p.add("annotation", "annotation-Pa55"), p.add("argument", "argument-Pa55"), p.add("pod token", "pod-token-0123"), p.add("pod variable", "plain-variable-1"))}
	api.secrets = fmt.Sprintf(`{"items": [{"data": {"key": %q, "multi": %q}}]}`, base64.StdEncoding.EncodeToString([]byte(p.add("Secret object", "object value, 12"))),
		base64.StdEncoding.EncodeToString([]byte("first line of it\n"+p.add("line of a Secret", "second line of it"))))
	put(t, n.kubeconfig, api.kubeconfig(t, p.add("client key", "jwt-like-bearer-0123456789")))

	// Secrets that only their form or name shows.
	p.add("bearer", "Zm9vYmFyLWJlYXJlcg")
	p.add("flag", "flag-Pa55word")
	p.add("unknown key", strings.Repeat("unknown key bytes ", 6))
	p.add("join token", "fedcba.fedcba9876543210")
	p.add("JWT", "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJlLW9mLWl0")
	p.add("URL", "url-Pa55")
	p.add("YAML", "yaml Pa55 phrase")
	unknown := []string{
		"Authorization: Bearer " + p["bearer"], "mysqld --password=" + p["flag"] + " --x", "rootlessnode up --join https://h:6443 --token " + p["join token"],
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte(p["unknown key"])})), "got " + p["JWT"], "pull https://u:" + p["URL"] + "@r.example/x",
		"password: " + p["YAML"],
	}
	var log strings.Builder
	for _, line := range unknown {
		for _, form := range []string{line, base64.StdEncoding.EncodeToString([]byte(line)), url.QueryEscape(line), url.PathEscape(line)} {
			log.WriteString("I0102 x.go:1] " + form + "\n")
		}
	}
	for kind, secret := range p {
		if slices.Contains([]string{"annotation", "argument", "pod variable", "bearer", "flag", "unknown key", "join token", "URL", "YAML"}, kind) {
			continue // not known, so that its context must show it
		}
		for _, form := range encodings(secret) {
			log.WriteString("I0102 x.go:2] value " + form + " of it\n")
		}
	}
	put(t, in.Data.Log("kubelet"), log.String())
	put(t, in.Data.LastExit(), `{"code": 4, "message": "join: token `+p["join token"]+`", "logTail": ["Authorization: Bearer `+p["bearer"]+`"]}`)
	put(t, in.Runtime.Config(), `{"controlPlane": {"apiServerExtraArgs": ["--service-password=`+p["flag"]+`"]}}`)
	n.cfg.ControlPlane.APIServerExtraArgs = []string{"--some-secret=" + p["flag"], "--proxy=http://u:" + p["URL"] + "@h"}
	n.status.Reason = "pull with password=" + p["flag"]
	n.status.Warnings = strings.Split(log.String(), "\n")
	n.events = []status.Event{{Component: "kubelet", Reason: "token " + p["join token"], Tail: strings.Split(log.String(), "\n")}}
	n.findings = []preflight.Finding{{Check: "proxy", Message: "http://user:" + p["proxy"] + "@p.example:3128 does not respond"}}

	files, s := reported(t, in)
	for _, res := range s.Parts {
		if !slices.Contains([]string{"versions", "cgroup", "directories"}, res.Name) { // they depend on the machine
			assert.Check(t, res.Error == "", "%s: %s", res.Name, res.Error)
		}
	}
	for name, text := range files {
		for kind, secret := range p {
			for _, form := range traces(secret) {
				assert.Check(t, !strings.Contains(text, form), "%s has the secret %q: %s", name, kind, form)
			}
		}
	}
	for _, part := range []string{"logs/kubelet.log", "config.yaml", "status.json", "events.jsonl", "check.json", "state/last-exit.json", "state/config.json", "account.txt"} {
		assert.Check(t, cmp.Contains(files[part], "[REDACTED]"), part)
	}
	assert.Assert(t, cmp.Contains(files["cluster/pods.json"], `"name": "web"`))
	assert.Assert(t, cmp.Contains(files["account.txt"], "DB_PASSWORD=(set)"))
	assert.Assert(t, cmp.Contains(files["account.txt"], "@p.example:3128"))
}

// fakeAPI is an API server with pods and Secrets.
type fakeAPI struct{ pods, secrets string }

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text := map[string]string{"/api/v1/pods": f.pods, "/api/v1/secrets": f.secrets}[r.URL.Path]
	if text == "" {
		text = `{"items": []}`
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, text) // the test fails without the answer
}

// kubeconfig starts the server and returns a kubeconfig with this token.
func (f *fakeAPI) kubeconfig(t *testing.T, token string) string {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
		"clusters": [{"name": "c", "cluster": {"server": %q}}], "users": [{"name": "u", "user": {"token": %q}}]}`, server.URL, token)
}

// TestNamesAreFixed checks that the names in the archive do not depend on the time or on the machine.
func TestNamesAreFixed(t *testing.T) {
	t.Parallel()
	in, _ := newInput(t)
	put(t, in.Data.Log("node"), "line\n")
	put(t, in.Data.Record(), "{}")
	put(t, in.Registry, "{}")
	first, s := reported(t, in)
	in.Now = in.Now.Add(time.Hour)
	second, _ := reported(t, in)
	assert.DeepEqual(t, slices.Sorted(maps.Keys(first)), slices.Sorted(maps.Keys(second)))
	var names []string
	for _, p := range parts() {
		names = append(names, p.name)
	}
	for i, p := range s.Parts {
		assert.Equal(t, p.Name, names[i])
		for _, f := range p.Files {
			_, ok := first[f]
			assert.Check(t, ok, f)
		}
	}
	var read Summary
	assert.NilError(t, json.Unmarshal([]byte(first["report.json"]), &read))
	assert.DeepEqual(t, &read, s)
	for _, name := range []string{
		"versions.json", "config.yaml", "check.json", "status.json", "state/rootlessnode.json", "state/registry-entry.json",
		"directories/data-dir.txt", "logs/node.log", "cgroup.txt", "mounts/host-mountinfo.txt", "network/host-interfaces.txt", "kernel.txt", "account.txt",
	} {
		assert.Check(t, first[name] != "", name)
	}
}

// TestPageListsTheFiles checks that docs/report.md has a row for each file.
func TestPageListsTheFiles(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "report.md"))
	assert.NilError(t, err)
	in, n := newInput(t)
	put(t, in.Data.Record(), "{}")
	put(t, n.kubeconfig, (&fakeAPI{pods: `{}`}).kubeconfig(t, "x"))
	files, _ := reported(t, in)
	for name := range files {
		dir, base := filepath.Split(name)
		listed := strings.Contains(string(page), "`"+name+"`") || strings.Contains(string(page), "`"+dir+"*`") ||
			strings.Contains(string(page), "`"+dir) && strings.Contains(string(page), "`"+base+"`")
		for _, prefix := range []string{"host-", "node-"} {
			listed = listed || strings.HasPrefix(base, prefix) && strings.Contains(string(page), dir+"host-*")
		}
		assert.Check(t, listed, name)
	}
}

// TestFaultyParts checks that a part that fails, panics or does not end is noted and does not affect the others.
func TestFaultyParts(t *testing.T) {
	t.Parallel()
	in, _ := newInput(t)
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	all := []part{
		{"good", func(context.Context, *Input) ([]file, error) { return []file{{"good.txt", "abc"}}, nil }},
		{"partial", func(context.Context, *Input) ([]file, error) {
			return []file{{"partial.txt", "abc"}}, errors.New("token=hunter22 rejected")
		}},
		{"panic", func(context.Context, *Input) ([]file, error) { panic("broken") }},
		{"slow", func(ctx context.Context, _ *Input) ([]file, error) {
			<-ctx.Done()
			return []file{{"slow.txt", "what it has"}}, context.Cause(ctx)
		}},
		{"hang", func(context.Context, *Input) ([]file, error) { <-hang; return nil, nil }},
		{"large", func(context.Context, *Input) ([]file, error) {
			return []file{{"large.txt", strings.Repeat("ä", 100)}}, nil
		}},
	}
	var b bytes.Buffer
	s, err := write(t.Context(), &b, in, all, limits{part: 100 * time.Millisecond, file: 51})
	assert.NilError(t, err)
	files := unpack(t, b.Bytes())
	assert.DeepEqual(t, s.Parts, []PartResult{
		{Name: "good", Files: []string{"good.txt"}},
		{Name: "partial", Files: []string{"partial.txt"}, Error: "token=[REDACTED] rejected"},
		{Name: "panic", Error: "panic: broken"},
		{Name: "slow", Files: []string{"slow.txt"}, Error: "time limit exceeded"},
		{Name: "hang", Error: "not finished: time limit exceeded"},
		{Name: "large", Files: []string{"large.txt"}, Cut: []string{"large.txt"}},
	})
	assert.Equal(t, files["large.txt"], strings.Repeat("ä", 25)+"\n[cut]\n")
	assert.Equal(t, files["slow.txt"], "what it has")
}

// TestDamagedNode checks that a report is possible without a handle of the node, and with files that cannot be read.
func TestDamagedNode(t *testing.T) {
	t.Parallel()
	in, _ := newInput(t)
	in.Node, in.Fault = nil, errors.New("decode config.json: unexpected end")
	put(t, in.Data.Log("node"), "line\n")
	assert.NilError(t, os.MkdirAll(in.Data.Ports(), 0o700)) // a directory in place of a file
	files, s := reported(t, in)
	assert.Assert(t, cmp.Contains(files["versions.json"], "decode config.json: unexpected end"))
	assert.Equal(t, files["logs/node.log"], "line\n")
	byName := map[string]string{}
	for _, p := range s.Parts {
		byName[p.Name] = p.Error
	}
	assert.Assert(t, cmp.Contains(byName["config"], "not readable"))
	assert.Assert(t, cmp.Contains(byName["state"], "not a regular file"))

	in.Node = &fakeNode{cfg: config.Default(), err: errdefs.NotRunning("no process")}
	_, s = reported(t, in)
	assert.Equal(t, s.Parts[4].Error, "", "a node that is not running has no events")
}

// TestReadTail checks that an excerpt of a log begins with a whole line, because a part of a line may be a part of a secret.
func TestReadTail(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.log")
	put(t, path, "first line\nsecond line\nthird line\n")
	text, err := readTail(path, 15)
	assert.NilError(t, err)
	assert.Equal(t, text, "third line\n")
	text, err = readTail(path, 100)
	assert.NilError(t, err)
	assert.Assert(t, strings.HasPrefix(text, "first line\n"))
}
