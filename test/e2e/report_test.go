package e2e

import (
	"archive/tar"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/bugreport"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// reportWithoutSecrets plants the keys of the node and the value of a Secret in a log, and checks that a report is complete and has none of
// them.
func (n *testNode) reportWithoutSecrets() {
	d := layout.NewData(n.status().DataDir)
	const object = "not-for-everyone"
	secrets := []string{object, base64.StdEncoding.EncodeToString([]byte(object))}
	for _, file := range []string{filepath.Join(d.PKI(), "ca.key"), filepath.Join(d.PKI(), "encryption-config.yaml"), d.AdminKubeconfig()} {
		text, err := os.ReadFile(file)
		assert.NilError(n.t, err)
		for line := range strings.Lines(string(text)) {
			value := line[strings.LastIndexByte(strings.TrimRight(line, "\n"), ' ')+1:]
			value = strings.TrimSpace(value)
			private := strings.HasSuffix(file, ".key") && !strings.HasPrefix(line, "-----") || strings.Contains(line, "secret:") || strings.Contains(line, "client-key-data:")
			if private {
				secrets = append(secrets, value)
			}
		}
	}
	assert.Assert(n.t, len(secrets) > 5, "too few keys of the node: %d", len(secrets))
	log, err := os.OpenFile(d.Log("node"), os.O_APPEND|os.O_WRONLY, 0)
	assert.NilError(n.t, err)
	_, err = log.WriteString("planted: " + strings.Join(secrets, "\nplanted: ") + "\n")
	assert.NilError(n.t, errors.Join(err, log.Close()))

	path := filepath.Join(n.t.TempDir(), "report.tar.gz")
	s := answer[bugreport.Summary](n, "report", "--file", path)
	for _, p := range s.Parts {
		assert.Check(n.t, p.Error == "", "%s: %s", p.Name, p.Error)
	}
	st, err := os.Stat(path)
	assert.NilError(n.t, err)
	assert.Equal(n.t, st.Mode().Perm(), os.FileMode(0o600))
	files := n.unpack(path)
	for name, text := range files {
		for _, secret := range secrets {
			assert.Check(n.t, !strings.Contains(text, secret), "%s has the secret %s", name, secret)
		}
	}
	for name, want := range map[string]string{
		"logs/node.log": "planted: [REDACTED]", "cluster/pods.json": `"name": "web"`, "cgroup.txt": "kubelet", "mounts/node-mountinfo.txt": "/var/lib/kubelet",
		"status.json": `"state": "ready"`, "events.jsonl": "kubelet", "versions.json": "kube-apiserver",
	} {
		assert.Check(n.t, cmp.Contains(files[name], want), name)
	}
}

// unpack returns the files of a report by name.
func (n *testNode) unpack(path string) map[string]string {
	n.t.Helper()
	f, err := os.Open(path)
	assert.NilError(n.t, err)
	defer f.Close()
	gz, err := gzip.NewReader(f)
	assert.NilError(n.t, err)
	files := map[string]string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		assert.NilError(n.t, err)
		text, err := io.ReadAll(r)
		assert.NilError(n.t, err)
		files[strings.TrimPrefix(h.Name, bugreport.Dir(n.name)+"/")] = string(text)
	}
}
