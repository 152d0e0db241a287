package e2e

import (
	"archive/tar"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
)

// privateRegistry is a registry on the host's loopback with a certificate of its own authority and a login.
type privateRegistry struct {
	t *testing.T
	// address is localhost:PORT, and caFile the authority's certificate.
	address, caFile string
	transport       *http.Transport
}

const registryUser, registryPassword = "reader", "s3cr3t:with/colon"

func startPrivateRegistry(t *testing.T, dir string) *privateRegistry {
	t.Helper()
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != registryUser || password != registryPassword {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	ca, pair := registryCertificates(t)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	r := &privateRegistry{
		t: t, address: fmt.Sprintf("localhost:%d", server.Listener.Addr().(*net.TCPAddr).Port), caFile: filepath.Join(dir, "registry-ca.crt"),
		transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}},
	}
	t.Cleanup(r.transport.CloseIdleConnections)
	assert.NilError(t, os.WriteFile(r.caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}), 0o600))
	return r
}

// registryCertificates returns an authority, and a certificate for the host's loopback that it has signed.
func registryCertificates(t *testing.T) (*x509.Certificate, tls.Certificate) {
	t.Helper()
	sign := func(template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		assert.NilError(t, err)
		if parentKey == nil {
			parentKey = key
		}
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
		assert.NilError(t, err)
		certificate, err := x509.ParseCertificate(der)
		assert.NilError(t, err)
		return certificate, key
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "registry test authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	ca, caKey := sign(authority, authority, nil)
	leaf, key := sign(&x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{"localhost", config.HostName}}, ca, caKey)
	return ca, tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}
}

// push stores the test's image under a name of the registry, with another id than the image that the tests import.
func (r *privateRegistry) push(repository string) {
	r.t.Helper()
	pushImage(r.t, r.address+"/"+repository, testImageFile(r.t, "pushed as "+repository), r.options()...)
}

// options returns the options of a client that is logged in.
func (r *privateRegistry) options() []remote.Option {
	login := &authn.Basic{Username: registryUser, Password: registryPassword}
	return []remote.Option{remote.WithTransport(r.transport), remote.WithAuth(login)}
}

func pushImage(t *testing.T, to string, image v1.Image, options ...remote.Option) {
	t.Helper()
	tag, err := name.NewTag(to)
	assert.NilError(t, err)
	assert.NilError(t, remote.Write(tag, image, append(options, remote.WithContext(t.Context()))...))
}

// testImageFile returns the image of the archive that hack/test.sh creates, with another author and therefore another id.
func testImageFile(t *testing.T, author string) v1.Image {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(os.Getenv(envImage))
	assert.NilError(t, err)
	defer func() { _ = f.Close() }()
	for archive := tar.NewReader(f); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		assert.NilError(t, err)
		path := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if h.FileInfo().IsDir() {
			assert.NilError(t, os.MkdirAll(path, 0o700))
			continue
		}
		data, err := io.ReadAll(archive)
		assert.NilError(t, err)
		assert.NilError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		assert.NilError(t, os.WriteFile(path, data, 0o600))
	}
	index, err := layout.ImageIndexFromPath(dir)
	assert.NilError(t, err)
	manifest, err := index.IndexManifest()
	assert.NilError(t, err)
	image, err := index.Image(manifest.Manifests[0].Digest)
	assert.NilError(t, err)
	settings, err := image.ConfigFile()
	assert.NilError(t, err)
	settings = settings.DeepCopy()
	settings.Author = author
	image, err = mutate.ConfigFile(image, settings)
	assert.NilError(t, err)
	return image
}

// mirroredRegistry is a registry that does not exist. Its only mirror is the path team of the private registry.
const mirroredRegistry = "private.example"

// clusterRegistryPort is the node port of a Service that stands for a registry in the cluster.
const clusterRegistryPort = 30380

// flags returns the flags of up with which a node uses the registry.
func (r *privateRegistry) flags() []string {
	_, port, _ := strings.Cut(r.address, ":")
	inside := config.HostName + ":" + port
	var flags []string
	for name, settings := range map[string]string{
		r.address: "{caFile: " + r.caFile + "}", inside: "{caFile: " + r.caFile + "}",
		fmt.Sprintf("localhost:%d", clusterRegistryPort): "{}",
		mirroredRegistry: "{mirrorsOnly: true, mirrors: [https://" + inside + "/team]}",
	} {
		flags = append(flags, "--set", "registries."+name+"="+settings)
	}
	return flags
}

// dockerLogin returns the content of docker's config.json after a login.
func dockerLogin(address, user, password string) string {
	return fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, address, base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
}

// usePrivateRegistry pulls from the registry, and from one that it mirrors, with logins of docker and podman that are made while the node
// runs. It checks that no file of the node has the password.
func (n *testNode) usePrivateRegistry(r *privateRegistry) {
	n.reachClusterRegistry()
	r.push("team/app:1")
	r.push("team/other:1")
	pods := []string{"anonymous", "docker-login", "podman-login"}
	run := func(pod, image string) {
		n.kubectl("run", pod, "--image="+image, "--image-pull-policy=Always", "--restart=Never", "--", "sleep", "1000")
	}
	n.t.Cleanup(func() { n.kubectl(append([]string{"delete", "pod", "--now", "--ignore-not-found"}, pods...)...) })
	run(pods[0], r.address+"/team/app:1")
	eventually(n.t, podLimit, "the pull without a login is denied", func() error {
		messages := n.kubectl("get", "events", "--field-selector=involvedObject.name=anonymous,reason=Failed", "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(messages, "no basic auth credentials") {
			return fmt.Errorf("events: %s", messages)
		}
		return nil
	})

	login := func(file, registry string) {
		path := filepath.Join(n.home(), file)
		assert.NilError(n.t, os.MkdirAll(filepath.Dir(path), 0o700))
		assert.NilError(n.t, os.WriteFile(path, []byte(dockerLogin(registry, registryUser, registryPassword)), 0o600))
		n.t.Cleanup(func() { assert.Check(n.t, os.Remove(path)) })
	}
	login(".docker/config.json", r.address)
	run(pods[1], r.address+"/team/app:1")
	n.waitPod(pods[1])
	_, port, _ := strings.Cut(r.address, ":")
	login(".config/containers/auth.json", config.HostName+":"+port+"/team")
	run(pods[2], mirroredRegistry+"/other:1")
	n.waitPod(pods[2])

	// grep also fails for files that disappear meanwhile.
	found, _, _ := n.try(podLimit, "exec", "--", "grep", "-rIlsF", registryPassword, "/run", "/etc/kubernetes", "/var/lib/kubelet")
	assert.Equal(n.t, found, "", "files of the node with the password")
}

// reachClusterRegistry reads from a node port at the node's loopback, as the container runtime does with a registry in the cluster.
func (n *testNode) reachClusterRegistry() {
	n.apply(strings.NewReplacer("30380", strconv.Itoa(clusterRegistryPort), "IMAGE", testImage).Replace(`
apiVersion: v1
kind: Pod
metadata: {name: cluster-registry, labels: {app: cluster-registry}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: httpd, image: IMAGE, command: [/bin/sh, -c, "mkdir /v2; echo from the cluster >/v2/index.html; exec httpd -f -p 5000 -h /"]}
---
apiVersion: v1
kind: Service
metadata: {name: cluster-registry}
spec: {type: NodePort, selector: {app: cluster-registry}, ports: [{port: 5000, nodePort: 30380}]}
`))
	n.t.Cleanup(func() { n.kubectl("delete", "--now", "pod/cluster-registry", "service/cluster-registry") })
	eventually(n.t, podLimit, "the node port answers at the node's loopback", func() error {
		const request = `exec 3<>/dev/tcp/localhost/%d && printf 'GET /v2/index.html HTTP/1.0\r\n\r\n' >&3 && cat <&3`
		out, stderr, code := n.try(podLimit, "exec", "--", "bash", "-c", fmt.Sprintf(request, clusterRegistryPort))
		if code != 0 || !strings.Contains(out, "from the cluster") {
			return fmt.Errorf("%s%s", out, stderr)
		}
		return nil
	})
}

// localImage is an image in the registry of the node.
const localImage = "localhost:5000/team/app:2"

// pushToLocalRegistry pushes an image from the host, and checks that pods cannot reach the registry.
func (n *testNode) pushToLocalRegistry() {
	pushImage(n.t, localImage, testImageFile(n.t, "local"))
	n.kubectl("run", "prober", "--image="+testImage, "--restart=Never", "--", "sleep", "1000")
	n.t.Cleanup(func() { n.kubectl("delete", "pod", "--now", "prober") })
	n.waitPod("prober")
	url := fmt.Sprintf("http://%s:5000/v2/", n.status().Network.Address)
	out, stderr, code := n.try(podLimit, "kubectl", "exec", "prober", "--", "wget", "-q", "-T", "5", "-O", "-", url)
	assert.Assert(n.t, code != 0 && out == "", "a pod reaches %s: %s%s", url, out, stderr)
}

// pullFromLocalRegistry runs a pod with that image.
func (n *testNode) pullFromLocalRegistry() {
	n.kubectl("run", "local", "--image="+localImage, "--image-pull-policy=Always", "--restart=Never", "--", "sleep", "1000")
	n.waitPod("local")
	n.kubectl("delete", "pod", "--now", "local")
}

// home returns the home directory of a node that has its own.
func (n *testNode) home() string {
	for _, kv := range n.env {
		if dir, ok := strings.CutPrefix(kv, "HOME="); ok {
			return dir
		}
	}
	n.t.Fatal("the node has no home directory of its own")
	return ""
}
