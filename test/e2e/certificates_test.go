package e2e

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// envCertificates is the duration of TestShortCertificates, such as 1h. `make test-certificates` sets it.
const envCertificates = "ROOTLESSNODE_E2E_CERTIFICATES"

// TestShortCertificates runs a node whose certificates live for ten minutes. All the time the node is ready, its pod answers, and kubectl
// works with the kubeconfig that was printed at first. No pod and no component is restarted.
func TestShortCertificates(t *testing.T) {
	t.Parallel()
	require(t)
	if os.Getenv(envCertificates) == "" {
		t.Skipf("%s is not set; run make test-certificates, which takes an hour", envCertificates)
	}
	duration, err := time.ParseDuration(os.Getenv(envCertificates))
	assert.NilError(t, err, envCertificates)
	n := newNode(t, "e2e-certs", "--set", "certificates.lifetime=10m")
	n.up()
	n.importImage()
	n.apply(fmt.Sprintf(webManifest, 30188))
	n.waitPod("web")
	before := n.running()
	kubeconfig := strings.TrimSpace(n.run(podLimit, "kubeconfig", "--path"))
	renewals, last := -1, ""
	for end := time.Now().Add(duration); time.Now().Before(end); time.Sleep(10 * time.Second) {
		if content := read(t, filepath.Dir(kubeconfig), filepath.Base(kubeconfig)); content != last {
			renewals, last = renewals+1, content
		}
		s := n.status()
		assert.Equal(t, s.State, status.NodeReady, s.Reason)
		c := s.Condition(status.ConditionCertificates)
		assert.Assert(t, c.OK && !c.Warning, "%+v", c)
		assert.NilError(t, kubectlOnHost(kubeconfig, "annotate", "--overwrite", "node", "--all", fmt.Sprintf("renewals=%d", renewals)))
		n.kubectl("exec", "web", "-c", "helper", "--", "true")
		n.answers(30188)
	}
	assert.Equal(t, n.running(), before)
	t.Logf("%d renewals in %s", renewals, duration)
	assert.Assert(t, renewals >= int(duration/(5*time.Minute)), "only %d renewals", renewals)
}

// kubectlOnHost runs kubectl as a user of the host does.
func kubectlOnHost(kubeconfig string, args ...string) error {
	cmd := exec.Command(filepath.Join(os.Getenv(envOut), "libexec", "rootlessnode", "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %v: %w: %s", args, err, out)
	}
	return nil
}

// running describes the containers and components that run, and how often they were restarted.
func (n *testNode) running() string {
	n.t.Helper()
	text := n.kubectl("get", "pods", "-A", "-o", "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].containerID} "+
		"{.status.containerStatuses[*].restartCount}{\"\\n\"}{end}")
	for _, c := range n.status().Components {
		text += fmt.Sprintln(c.Name, c.Restarts)
	}
	return text
}

// renewsCertificates checks that certificates that expire soon, and those that have expired, are renewed while the node runs.
func (n *testNode) renewsCertificates() {
	n.t.Helper()
	s := n.status()
	pods := func() string {
		return n.kubectl("get", "pods", "-A", "-o", "jsonpath={.items[*].status.containerStatuses[*].containerID}")
	}
	before, podsBefore := n.running(), pods()

	// A lifetime of 24 minutes, of which less than a third is left, but enough for the components to read the new certificates.
	n.expire(s, -17*time.Minute, 7*time.Minute)
	assert.Equal(n.t, n.running(), before, "something was restarted")

	n.expire(s, -time.Hour, -time.Minute)
	eventually(n.t, podLimit, "the components use the new certificates", func() error {
		now := n.status()
		for _, name := range []string{"kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy", "flannel"} {
			was, is := s.Component(name), now.Component(name)
			if is.State != status.Ready || is.Restarts != was.Restarts+1 {
				return fmt.Errorf("%+v", is)
			}
		}
		if now.State != status.NodeReady {
			return fmt.Errorf("%s: %s", now.State, now.Reason)
		}
		return nil
	})
	assert.Equal(n.t, pods(), podsBefore, "a container was restarted")
	assert.NilError(n.t, kubectlOnHost(s.Kubeconfig, "get", "nodes"))
}

// expire replaces the certificates of the node by others, which are valid between two times from now, and waits until the node has renewed
// them.
func (n *testNode) expire(s status.Status, from, to time.Duration) {
	n.t.Helper()
	kubeconfig := func() string { return read(n.t, filepath.Dir(s.Kubeconfig), filepath.Base(s.Kubeconfig)) }
	before := kubeconfig()
	resign(n.t, layout.NewData(s.DataDir).PKI(), time.Now().Add(from), time.Now().Add(to))
	eventually(n.t, podLimit, "the certificates are renewed", func() error {
		now := n.status()
		if c := now.Condition(status.ConditionCertificates); !c.OK || c.Warning || kubeconfig() == before {
			return fmt.Errorf("%+v", c)
		}
		return kubectlOnHost(s.Kubeconfig, "get", "nodes")
	})
}

// resign signs all certificates below the directory again, with other times.
func resign(t *testing.T, dir string, from, to time.Time) {
	t.Helper()
	assert.NilError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		name, ok := strings.CutSuffix(path, ".crt")
		if err != nil || !ok || strings.HasSuffix(name, "ca") {
			return err
		}
		authority := filepath.Join(filepath.Dir(path), "ca")
		if strings.HasPrefix(filepath.Base(name), "front-proxy") {
			authority = filepath.Join(dir, "front-proxy-ca")
		}
		old, _ := loadPair(t, name)
		ca, key := loadPair(t, authority)
		old.NotBefore, old.NotAfter = from, to
		der, err := x509.CreateCertificate(rand.Reader, old, ca, old.PublicKey, key)
		assert.NilError(t, err)
		return atomicfile.Options{}.Write(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
	}))
}

// loadPair returns a certificate and its key.
func loadPair(t *testing.T, name string) (*x509.Certificate, any) {
	t.Helper()
	block, _ := pem.Decode([]byte(read(t, filepath.Dir(name), filepath.Base(name)+".crt")))
	cert, err := x509.ParseCertificate(block.Bytes)
	assert.NilError(t, err)
	block, _ = pem.Decode([]byte(read(t, filepath.Dir(name), filepath.Base(name)+".key")))
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	assert.NilError(t, err)
	return cert, key
}
