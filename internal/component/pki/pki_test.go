package pki

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

var birth = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// Names of the certificates of nodeSpec.
const (
	server = "server"
	admin  = "admin"
	proxy  = "proxy"
	local  = "local"
	client = "client"
)

func nodeSpec(t *testing.T) Spec {
	t.Helper()
	return NodeSpec(fixture.Env(), []component.Certificate{
		{
			Name: server, Authority: ClusterCA, CommonName: "server", Server: true,
			DNSNames: []string{"kubernetes", Localhost}, Addresses: LoopbackAddresses(),
		},
		Client(admin, ClusterCA, "administrator", "system:masters"),
		Client(proxy, FrontProxyCA, proxy),
		Local("etcd/server", EtcdCA, "etcd-server"),
		Local(local, ClusterCA, "system:local"),
		Client(client, ClusterCA, "system:client"),
	})
}

func ensure(t *testing.T, dir string, spec Spec, now time.Time) Changes {
	t.Helper()
	changes, err := Ensure(dir, spec, now)
	assert.NilError(t, err)
	return changes
}

// newPKI returns a directory in which all files were created at the time birth.
func newPKI(t *testing.T) (dir string, spec Spec) {
	t.Helper()
	dir, spec = filepath.Join(t.TempDir(), "pki"), nodeSpec(t)
	ensure(t, dir, spec, birth)
	return dir, spec
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	assert.NilError(t, err)
	return data
}

func certOf(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(read(t, dir, name+certSuffix))
	cert, err := x509.ParseCertificate(block.Bytes)
	assert.NilError(t, err)
	return cert
}

func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	assert.NilError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		files[path] = string(data)
		return err
	}))
	return files
}

func TestChains(t *testing.T) {
	t.Parallel()
	dir, spec := newPKI(t)
	for _, want := range spec.Certificates {
		cert := certOf(t, dir, want.Name)
		for _, ca := range spec.Authorities {
			pool := x509.NewCertPool()
			pool.AddCert(certOf(t, dir, ca.Name))
			for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
				_, err := cert.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: birth, KeyUsages: []x509.ExtKeyUsage{use}})
				good := ca.Name == want.Authority && slices.Contains(usages(want), use)
				assert.Equal(t, err == nil, good, "%s by %s for use %d: %v", want.Name, ca.Name, use, err)
			}
		}
		key, err := parseKey(read(t, dir, want.Name+keySuffix))
		assert.NilError(t, err)
		assert.Assert(t, key.PublicKey.Equal(cert.PublicKey), want.Name)
		assert.Assert(t, !cert.IsCA, want.Name)
	}
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	dir, spec := newPKI(t)
	check := func() {
		t.Helper()
		assert.NilError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			assert.NilError(t, err)
			info, err := d.Info()
			assert.NilError(t, err)
			want := fs.FileMode(0o600)
			switch {
			case d.IsDir():
				want = 0o700
			case strings.HasSuffix(path, certSuffix), strings.HasSuffix(path, ".pub"):
				want = 0o644
			}
			assert.Equal(t, info.Mode().Perm(), want, path)
			assert.Assert(t, !strings.Contains(path, ".tmp"), path)
			return nil
		}))
	}
	check()
	assert.NilError(t, os.Chmod(filepath.Join(dir, "ca.key"), 0o644))
	assert.NilError(t, os.Chmod(filepath.Join(dir, "etcd/server.key"), 0o666))
	assert.NilError(t, os.Chmod(filepath.Join(dir, encryption), 0o640))
	assert.NilError(t, os.Chmod(filepath.Join(dir, "etcd"), 0o755))
	assert.Assert(t, ensure(t, dir, spec, birth).None())
	check()
}

func TestEnsureTwice(t *testing.T) {
	t.Parallel()
	dir, spec := newPKI(t)
	before := tree(t, dir)
	assert.Equal(t, len(before), 2*(3+len(spec.Certificates))+3)
	assert.Assert(t, ensure(t, dir, spec, birth.Add(200*day)).None())
	assert.DeepEqual(t, tree(t, dir), before)
}

func TestRenewal(t *testing.T) {
	t.Parallel()
	all := len(nodeSpec(t).Certificates)
	for name, c := range map[string]struct {
		after        time.Duration
		certificates int
		authorities  int
	}{
		"two thirds not yet over":  {243 * day, 0, 0},
		"less than a third left":   {244 * day, all, 0},
		"expired":                  {400 * day, all, 0},
		"authorities near the end": {2500 * day, all, 3},
		"all expired":              {4000 * day, all, 3},
		"clock set back":           {-day, all, 3},
		"clock set back a little":  {-time.Minute, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, spec := newPKI(t)
			before, now := tree(t, dir), birth.Add(c.after)
			changes := ensure(t, dir, spec, now)
			assert.Equal(t, len(changes.Created), 0)
			assert.Equal(t, len(changes.Renewed), c.certificates+c.authorities)
			after := tree(t, dir)
			for _, a := range spec.Authorities {
				key := filepath.Join(dir, a.Name+keySuffix)
				assert.Equal(t, after[key], before[key], "an authority keeps its key")
				assert.Assert(t, !now.After(certOf(t, dir, a.Name).NotAfter))
			}
			for _, want := range spec.Certificates {
				key := filepath.Join(dir, want.Name+keySuffix)
				assert.Equal(t, after[key] == before[key], c.certificates == 0, "a renewed certificate has a new key")
			}
			assert.Assert(t, ensure(t, dir, spec, now).None())
		})
	}
}

// TestRenewedAuthorityIsTheSame checks that the old and the new certificate of an authority verify the same
// certificates.
func TestRenewedAuthorityIsTheSame(t *testing.T) {
	t.Parallel()
	dir, spec := newPKI(t)
	oldCA, oldCert := certOf(t, dir, ClusterCA), certOf(t, dir, admin)
	ensure(t, dir, spec, birth.Add(2500*day))
	newCA, newCert := certOf(t, dir, ClusterCA), certOf(t, dir, admin)
	assert.Assert(t, !oldCA.Equal(newCA))
	assert.NilError(t, newCert.CheckSignatureFrom(oldCA))
	assert.NilError(t, oldCert.CheckSignatureFrom(newCA))
}

func TestLeafEndsWithItsAuthority(t *testing.T) {
	t.Parallel()
	spec := nodeSpec(t)
	spec.CALifetime, spec.Lifetime = 10*day, 100*day
	dir := t.TempDir()
	ensure(t, dir, spec, birth)
	assert.Equal(t, certOf(t, dir, admin).NotAfter, certOf(t, dir, ClusterCA).NotAfter)
}

func TestSpecChanges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(c *component.Certificate)
		renew  bool
	}{
		"name added":      {func(c *component.Certificate) { c.DNSNames = append(c.DNSNames, "new.example.com") }, true},
		"address removed": {func(c *component.Certificate) { c.Addresses = c.Addresses[1:2] }, true},
		"user":            {func(c *component.Certificate) { c.CommonName = "other" }, true},
		"group":           {func(c *component.Certificate) { c.Organizations = []string{"g"} }, true},
		"use":             {func(c *component.Certificate) { c.Client = true }, true},
		"authority":       {func(c *component.Certificate) { c.Authority = EtcdCA }, true},
		"order and repeats": {func(c *component.Certificate) {
			slices.Reverse(c.DNSNames)
			c.Addresses = append(c.Addresses, c.Addresses...)
		}, false},
		"case of a name": {func(c *component.Certificate) { c.DNSNames[0] = strings.ToUpper(c.DNSNames[0]) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, spec := newPKI(t)
			c.change(&spec.Certificates[0])
			changes := ensure(t, dir, spec, birth)
			assert.Equal(t, slices.Contains(changes.Renewed, server), c.renew)
			assert.Assert(t, is.Len(changes.Renewed, len(changes.Renewed)&1), "no other certificate changes")
			assert.Assert(t, ensure(t, dir, spec, birth).None())
		})
	}
}

func TestLostFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		remove  []string
		created []string
		renewed []string
	}{
		"a key":              {[]string{admin + ".key"}, nil, []string{admin}},
		"a certificate":      {[]string{admin + ".crt"}, []string{admin}, nil},
		"an authority's own": {[]string{"front-proxy-ca.crt"}, []string{FrontProxyCA}, nil},
		"a whole authority":  {[]string{"front-proxy-ca.crt", "front-proxy-ca.key"}, []string{FrontProxyCA}, []string{proxy}},
		"token key":          {[]string{"sa.key"}, []string{"sa.key"}, nil},
		"token public key":   {[]string{"sa.pub"}, nil, nil},
		"encryption":         {[]string{encryption}, []string{encryption}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, spec := newPKI(t)
			for _, f := range c.remove {
				assert.NilError(t, os.Remove(filepath.Join(dir, f)))
			}
			changes := ensure(t, dir, spec, birth)
			assert.DeepEqual(t, changes, Changes{Created: c.created, Renewed: c.renewed})
			for _, f := range c.remove {
				read(t, dir, f)
			}
			assert.Assert(t, ensure(t, dir, spec, birth).None())
		})
	}
}

func TestInterruptedWriteIsRepaired(t *testing.T) {
	t.Parallel()
	dir, spec := newPKI(t)
	// The new key was written, but the certificate was not.
	assert.NilError(t, os.WriteFile(filepath.Join(dir, admin+".key"), read(t, dir, local+".key"), 0o600))
	assert.DeepEqual(t, ensure(t, dir, spec, birth).Renewed, []string{admin})
	// The host crashed before the files reached the disk.
	assert.NilError(t, os.WriteFile(filepath.Join(dir, local+".crt"), nil, 0o600))
	assert.NilError(t, os.WriteFile(filepath.Join(dir, client+".key"), nil, 0o600))
	assert.DeepEqual(t, ensure(t, dir, spec, birth), Changes{Created: []string{local}, Renewed: []string{client}})
}

func TestDamage(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]map[string]string{
		"garbage in a key":               {admin + ".key": "x"},
		"empty token key":                {"sa.key": ""},
		"empty certificate of authority": {"ca.crt": ""},
		"cut off":                        {"etcd/server.crt": "-----BEGIN CERTIFICATE-----\nAAAA\n"},
		"a key where a certificate is":   {"ca.crt": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"},
		"token key":                      {"sa.key": "x"},
		"encryption":                     {encryption: "kind: Pod"},
		"encryption no YAML":             {encryption: "\t"},
		"two at once":                    {admin + ".key": "x", encryption: "x"},
		"certificate of an authority":    {"etcd/ca.crt": "x"},
		"two authorities":                {"etcd/ca.crt": "x", "front-proxy-ca.key": "y"},
		"no key in the authority's file": {"ca.key": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, spec := newPKI(t)
			for f, content := range damage {
				assert.NilError(t, os.WriteFile(filepath.Join(dir, f), []byte(content), 0o600))
			}
			before := tree(t, dir)
			// All certificates need renewal, but nothing may be changed.
			_, err := Ensure(dir, spec, birth.Add(4000*day))
			for f := range damage {
				assert.ErrorContains(t, err, filepath.Join(dir, f))
			}
			assert.Equal(t, len(errdefs.ReportOf(err).Hints), len(damage))
			assert.DeepEqual(t, tree(t, dir), before)
		})
	}
}

func TestAuthorityWithoutItsKey(t *testing.T) {
	t.Parallel()
	dir, spec := newPKI(t)
	assert.NilError(t, os.Remove(filepath.Join(dir, "ca.key")))
	_, err := Ensure(dir, spec, birth)
	assert.ErrorContains(t, err, "has a certificate but no key")
	assert.Assert(t, strings.Contains(errdefs.ReportOf(err).Hints[0], "restore the key"))

	assert.NilError(t, os.WriteFile(filepath.Join(dir, "ca.key"), read(t, dir, "etcd/ca.key"), 0o600))
	_, err = Ensure(dir, spec, birth)
	assert.ErrorContains(t, err, "does not belong")
}

func TestUnknownAuthority(t *testing.T) {
	t.Parallel()
	spec := nodeSpec(t)
	spec.Certificates[0].Authority = "missing"
	dir := filepath.Join(t.TempDir(), "pki")
	_, err := Ensure(dir, spec, birth)
	assert.ErrorContains(t, err, `unknown authority "missing"`)
	_, err = os.Stat(dir)
	assert.Assert(t, errors.Is(err, fs.ErrNotExist), "no file may be left")
}

func TestServiceAccountKey(t *testing.T) {
	t.Parallel()
	dir, spec := newPKI(t)
	pub, _ := pem.Decode(read(t, dir, saPub))
	parsed, err := x509.ParsePKIXPublicKey(pub.Bytes)
	assert.NilError(t, err)
	key, err := parseKey(read(t, dir, saKey))
	assert.NilError(t, err)
	assert.Assert(t, key.PublicKey.Equal(parsed))

	// An older public key in the file keeps older tokens valid.
	other, err := newKey()
	assert.NilError(t, err)
	otherPEM, err := encodePublic(&other.PublicKey)
	assert.NilError(t, err)
	both := string(read(t, dir, saPub)) + string(otherPEM)
	assert.NilError(t, os.WriteFile(filepath.Join(dir, saPub), []byte(both), 0o644))
	ensure(t, dir, spec, birth)
	assert.Equal(t, string(read(t, dir, saPub)), both)
}

func TestEncryptionConfigIsValid(t *testing.T) {
	t.Parallel()
	dir, _ := newPKI(t)
	var c apiserverv1.EncryptionConfiguration
	assert.NilError(t, yaml.UnmarshalStrict(read(t, dir, encryption), &c))
	assert.Equal(t, c.APIVersion, apiserverv1.SchemeGroupVersion.String())
	assert.DeepEqual(t, c.Resources[0].Resources, []string{"secrets"})
	assert.Assert(t, c.Resources[0].Providers[0].Secretbox != nil && c.Resources[0].Providers[1].Identity != nil)
	other, _ := newPKI(t)
	assert.Assert(t, string(read(t, dir, encryption)) != string(read(t, other, encryption)))
}

func TestKubeconfig(t *testing.T) {
	t.Parallel()
	dir, _ := newPKI(t)
	data, err := Kubeconfig(dir, admin, "https://127.0.0.1:6443", "c")
	assert.NilError(t, err)
	var k struct {
		Users []struct {
			User struct {
				Key []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	assert.NilError(t, yaml.Unmarshal(data, &k))
	assert.Equal(t, string(k.Users[0].User.Key), string(read(t, dir, admin+".key")))

	_, err = Kubeconfig(t.TempDir(), admin, "https://127.0.0.1:6443", "c")
	assert.ErrorContains(t, err, "not created yet")
}

func FuzzParse(f *testing.F) {
	key, err := newKey()
	assert.NilError(f, err)
	keyPEM, err := encodeKey(key)
	assert.NilError(f, err)
	f.Add(keyPEM)
	cert, err := selfSign(Authority{CommonName: "x"}, key, birth, day)
	assert.NilError(f, err)
	f.Add(encodeCert(cert))
	f.Fuzz(func(t *testing.T, data []byte) {
		if cert, err := parseCert(data); err == nil {
			again, err := parseCert(encodeCert(cert))
			assert.Assert(t, err == nil && again.Equal(cert))
		}
		if key, err := parseKey(data); err == nil {
			assert.Assert(t, key.Curve != nil)
		}
	})
}
