package noderole

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// testCertificates are the certificates of a control plane in a directory of the test.
type testCertificates struct {
	dir   string
	mu    sync.Mutex
	spec  pki.Spec
	skew  time.Duration // of the clock
	fault error
}

func (c *testCertificates) renew(now time.Time) (pki.Changes, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault != nil {
		return pki.Changes{}, c.fault
	}
	return pki.Ensure(c.dir, c.spec, now.Add(c.skew))
}

// change changes the certificates and waits until the watch has seen it.
func (c *testCertificates) change(change func()) {
	c.mu.Lock()
	change()
	c.mu.Unlock()
	time.Sleep(certificatesInterval)
	synctest.Wait()
}

func (c *testCertificates) validities() ([]pki.Validity, error) {
	return pki.Validities(c.dir, c.spec)
}

// testEnv returns the environment of a control plane.
func testEnv() component.Env {
	cfg := testConfig()
	cfg.Certificates = config.Certificates{Lifetime: config.Duration(10 * time.Minute), CALifetime: config.Duration(24 * time.Hour)}
	return component.Env{Config: cfg, HostName: "a", NodeIP: "10.0.2.100"}
}

// watchCertificates calls test with the certificates of a running node, its condition, and the units that it restarted.
func watchCertificates(t *testing.T, env component.Env, test func(t *testing.T, c *testCertificates, now func() status.Condition, restarted *[]string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		spec, err := catalogue.Spec(env)
		assert.NilError(t, err)
		c := &testCertificates{dir: filepath.Join(t.TempDir(), "pki"), spec: spec}
		_, err = c.renew(time.Now())
		assert.NilError(t, err)
		hub := status.NewHub(status.Status{}, status.Options{})
		var restarted []string
		runConditions(t, hub, map[string]conditionWatch{status.ConditionCertificates: &certificateWatch{
			store: c, log: silentLog(),
			restart:  func(_ context.Context, unit string) error { restarted = append(restarted, unit); return nil },
			affected: func(changes pki.Changes) []string { return affectedUnits(env, catalogue.Enabled(env.Config), changes) },
		}})
		synctest.Wait()
		test(t, c, func() status.Condition {
			s := hub.Snapshot()
			return *s.Condition(status.ConditionCertificates)
		}, &restarted)
	})
}

// TestCertificatesOfTenMinutes runs a node for an hour. Its certificates are renewed in time for running programs to read
// them, so that no component is restarted.
func TestCertificatesOfTenMinutes(t *testing.T) {
	t.Parallel()
	watchCertificates(t, testEnv(), func(t *testing.T, c *testCertificates, now func() status.Condition, restarted *[]string) {
		end := time.Now().Add(time.Hour)
		for time.Now().Before(end) {
			time.Sleep(certificatesInterval)
			synctest.Wait()
			assert.Assert(t, now().OK && !now().Warning, "%+v", now())
			all, err := c.validities()
			assert.NilError(t, err)
			for _, v := range all {
				assert.Assert(t, time.Until(v.NotAfter) > 5*time.Minute, "%+v", v)
			}
		}
		assert.Assert(t, is.Len(*restarted, 0))
	})
}

// TestCertificatesAfterSuspend checks that certificates that expired while the machine was suspended are renewed, and that
// the components that have connections with the former ones are restarted.
func TestCertificatesAfterSuspend(t *testing.T) {
	t.Parallel()
	watchCertificates(t, testEnv(), func(t *testing.T, c *testCertificates, now func() status.Condition, restarted *[]string) {
		c.change(func() { c.skew = 20 * time.Minute }) // the clock jumps; the timers of the test do not
		want := []string{"kubelet", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "flannel", "metrics-server", "storage-provisioner"}
		assert.DeepEqual(t, *restarted, want)
	})
}

// TestAuthoritiesRenewed checks which units are restarted if an authority is renewed.
func TestAuthoritiesRenewed(t *testing.T) {
	t.Parallel()
	env := testEnv()
	for _, c := range []struct {
		renewed []string
		units   []string
	}{
		{[]string{pki.ClusterCA}, []string{"kube-controller-manager", component.UnitAddons}},
		{[]string{pki.EtcdCA}, []string{"etcd", "kube-apiserver"}},
		{[]string{pki.FrontProxyCA, "admin", "apiserver"}, nil},
	} {
		got := affectedUnits(env, catalogue.Enabled(env.Config), pki.Changes{Renewed: c.renewed})
		assert.DeepEqual(t, got, c.units)
	}
}

// TestCertificatesNotRenewed checks that a failed renewal is reported with its fix, first as a warning.
func TestCertificatesNotRenewed(t *testing.T) {
	t.Parallel()
	watchCertificates(t, testEnv(), func(t *testing.T, c *testCertificates, now func() status.Condition, _ *[]string) {
		c.change(func() {
			c.fault = errdefs.WithHint(errors.New("write /etc/kubernetes/pki/admin.crt: no space left on device"), "free some space")
		})
		got := now()
		assert.Assert(t, got.OK && got.Warning && got.Reason == "RenewalFailed", "%+v", got)
		assert.Check(t, is.Contains(got.Message, "no space left on device"))
		assert.Equal(t, got.Hint, "free some space")
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		got = now()
		assert.Assert(t, !got.OK && got.Reason == "Expired", "%+v", got)
		assert.Check(t, is.Contains(got.Message, "kubelet-client"))
		assert.Equal(t, got.Hint, "free some space")
		c.change(func() { c.fault = nil })
		assert.Assert(t, now().OK && !now().Warning, "%+v", now())
	})
}

// TestCertificateCondition checks the messages for certificates that the node does not renew itself.
func TestCertificateCondition(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	valid := func(name string, since, left time.Duration, byKubelet bool) pki.Validity {
		return pki.Validity{Name: name, NotBefore: now.Add(-since), NotAfter: now.Add(left), ByKubelet: byKubelet}
	}
	for _, c := range []struct {
		all          []pki.Validity
		ok, warning  bool
		reason, says string
	}{
		{[]pki.Validity{valid("ca", year, 9*year, false), valid("kubelet-client", year/2, year/2, true)}, true, false, "Valid",
			"the first of 2 certificates expires at 2027-06-02T00:00:00Z (kubelet-client)"},
		{[]pki.Validity{valid("kubelet-client", 4*year/5, year/5, true)}, true, false, "Valid", ""},
		{[]pki.Validity{valid("kubelet-client", 19*year/20, year/20, true)}, true, true, "ExpiresSoon", "not renewed yet: kubelet-client"},
		{[]pki.Validity{valid("ca", 7*year, 3*year, false)}, true, true, "ExpiresSoon", "not renewed yet: ca"},
		{[]pki.Validity{valid("ca", 10*year, -time.Second, false)}, false, false, "Expired", "not valid now: ca"},
		{[]pki.Validity{valid("ca", -time.Hour, year, false)}, false, false, "Expired", "not valid now: ca"},
	} {
		got := certificateCondition(c.all, nil, now)
		assert.Assert(t, got.OK == c.ok && got.Warning == c.warning && got.Reason == c.reason, "%+v", got)
		assert.Check(t, is.Contains(got.Message, c.says))
	}
}

// TestKubeconfigValidity checks that the kubeconfig of the host's users counts.
func TestKubeconfigValidity(t *testing.T) {
	t.Parallel()
	spec, err := catalogue.Spec(testEnv())
	assert.NilError(t, err)
	dir := t.TempDir()
	_, err = pki.Ensure(dir, spec, time.Now())
	assert.NilError(t, err)
	data, err := pki.Kubeconfig(dir, "admin", "https://127.0.0.1:6443", "c")
	assert.NilError(t, err)
	path := filepath.Join(dir, "kubeconfig")
	assert.NilError(t, os.WriteFile(path, data, 0o600))
	own, err := pki.Validities(dir, spec)
	assert.NilError(t, err)
	got, err := kubeconfigValidity(path, "c")
	assert.NilError(t, err)
	admin := own[slices.IndexFunc(own, func(v pki.Validity) bool { return v.Name == "admin" })]
	assert.Assert(t, got.NotAfter.Equal(admin.NotAfter), "%v", got)

	_, err = kubeconfigValidity(filepath.Join(dir, "missing"), "admin")
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = kubeconfigValidity(path, "other")
	assert.ErrorContains(t, err, `no user "other"`)
}
