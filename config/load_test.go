package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const head = "apiVersion: rootlessnode.dev/v1alpha1\nkind: NodeConfig\n"

func TestLoadBytesRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, text string
		want       []string // each a whole line of the error
	}{
		{"unknown field", head + "networl: {mtu: 1}", []string{"f: networl: unknown field, did you mean network?"}},
		{"unknown field below", head + "network: {mtuu: 1}", []string{"f: network.mtuu: unknown field, did you mean network.mtu?"}},
		{"swapped letters", head + "network: {dirver: x}", []string{"f: network.dirver: unknown field, did you mean network.driver?"}},
		{"wrong case", head + "api: {Port: 1}", []string{"f: api.Port: unknown field, did you mean api.port?"}},
		{"field of elsewhere", head + "podCIDR: 10.1.0.0/16", []string{"f: podCIDR: unknown field, did you mean cluster.podCIDR?"}},
		{"unlike all", head + "zzzzzzzz: 1", []string{"f: zzzzzzzz: unknown field"}},
		{"all at once", head + "a1b2c3: 1\nnetwork: {mtu: x, driver: 3}", []string{
			"f: a1b2c3: unknown field",
			"f: network.driver: must be a string (quote it if it looks like a number or a boolean), got 3",
			`f: network.mtu: must be a whole number, got "x"`,
		}},
		{"twice", head + "api: {port: 1}\napi: {port: 2}", []string{`f: line 4: key "api" already set in map`}},
		{"no head", "api: {port: 7000}", []string{
			"f: apiVersion: missing: add apiVersion: rootlessnode.dev/v1alpha1", "f: kind: missing: add kind: NodeConfig",
		}},
		{"empty", "", []string{"f: apiVersion: missing: add apiVersion: rootlessnode.dev/v1alpha1", "f: kind: missing: add kind: NodeConfig"}},
		{"other version", "apiVersion: rootlessnode.dev/v2\nkind: Node", []string{
			`f: apiVersion: unsupported value "rootlessnode.dev/v2", expected "rootlessnode.dev/v1alpha1"`,
			`f: kind: unsupported value "Node", expected "NodeConfig"`,
		}},
		{"two documents", head + "---\n" + head, []string{"f: 2 YAML documents, expected one"}},
		{"list", "[1]", []string{"f: not a mapping of fields to values"}},
		{"scalar for a group", head + "network: fast", []string{`f: network: must be a mapping of fields, got "fast"`}},
		{"duration as number", head + "timeouts: {ready: 60}", []string{`f: timeouts.ready: duration 60: must be a string such as "90s"`}},
		{"duration without unit", head + "timeouts: {ready: '60'}", []string{
			`f: timeouts.ready: duration "60": must be a number with a unit, such as "90s" or "24h"`}},
		{"fraction", head + "network: {mtu: 1500.5}", []string{"f: network.mtu: must be a whole number, got 1500.5"}},
		{"yaml boolean", head + "logLevel: no", []string{"f: logLevel: must be a string (quote it if it looks like a number or a boolean), got false"}},
		{"list of numbers", head + "ports: {static: [80]}", []string{"f: ports.static: must be a list of strings, got [80]"}},
		{"map to numbers", head + "nodeLabels: {a: 1}", []string{`f: nodeLabels: must be a mapping to strings (quote numbers), got {"a":1}`}},
		{"broken", head + "api: {", []string{"f: line 3: did not find expected node content"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, err := LoadBytes([]byte(tc.text), "f")
			assert.Assert(t, is.Nil(c))
			assert.Assert(t, errors.Is(err, errdefs.ErrConfig))
			assert.DeepEqual(t, strings.Split(err.Error(), "\n"), tc.want)
			assert.Equal(t, errdefs.ExitCode(err), errdefs.ExitConfig)
			assert.Equal(t, len(errdefs.ReportOf(err).Hints), 1)
		})
	}
}

func TestLoadBytesMerges(t *testing.T) {
	t.Parallel()
	c, err := LoadBytes([]byte("# a comment\n---\n"+head+`
network:
  mtu: 65520
cluster:
ports: {bindAddresses: [0.0.0.0], static: ["8080:30080"]}
kubelet:
  maxPods: null
  enforceNodeAllocatable: []
  evictionHard: {pid.available: 5%}
  extraConfig: {a: {b: [1, x]}}
timeouts: {ready: 90s}
resources: {cpu: 1.5, systemReserved: {cpu: 1}}
...
`), "f")
	assert.NilError(t, err)
	want := Default()
	want.Network.MTU = 65520
	want.Kubelet.EnforceNodeAllocatable = []string{}
	want.Resources.CPU, want.Resources.SystemReserved.CPU = "1.5", "1"
	want.Ports.BindAddresses, want.Ports.Static = []string{"0.0.0.0"}, []string{"8080:30080"}
	want.Kubelet.EvictionHard["pid.available"] = "5%"
	want.Kubelet.ExtraConfig = map[string]any{"a": map[string]any{"b": []any{float64(1), "x"}}}
	assert.NilError(t, want.Set("timeouts.ready", "90s"))
	assert.DeepEqual(t, c, want)
}

func TestLoadFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c.yaml")
	assert.NilError(t, os.WriteFile(path, Sample(), 0o600))
	c, err := Load(path)
	assert.NilError(t, err)
	assert.DeepEqual(t, c, Default())

	_, err = Load(path + ".absent")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = Load("/dev/zero")
	assert.ErrorContains(t, err, "larger than")
	_, err = Load(t.TempDir())
	assert.ErrorIs(t, err, errdefs.ErrConfig)
}

func TestMarshalRoundTrip(t *testing.T) {
	t.Parallel()
	for _, c := range []*NodeConfig{Default(), full(t)} {
		b, err := Marshal(c)
		assert.NilError(t, err)
		assert.Assert(t, strings.HasPrefix(string(b), head), "in the order of declaration:\n%s", b)
		back, err := LoadBytes(b, "marshalled")
		assert.NilError(t, err)
		assert.DeepEqual(t, back, c)
	}
}

// full returns a config in which every field is set.
func full(t *testing.T) *NodeConfig {
	t.Helper()
	c := Default()
	for path, v := range map[string]string{
		"nodeLabels.example.com/team": "blue", "kubelet.featureGates.X": "true", "kubelet.extraConfig.a": "{b: 1}",
		"network.nameServers": "192.0.2.1, 192.0.2.2", "api.extraSANs": "a.example", "componentsDir": "/opt/c", "kubernetesVersion": "v1.36",
		"controlPlane.apiServerExtraArgs": "--v=4", "controlPlane.schedulerExtraArgs": "[--v=4]",
		"controlPlane.controllerManagerExtraArgs": "[\"--a=b,c\"]", "containerd.registryConfigDir": "/etc/x", "ports.static": "1:2",
		"network.hostPorts": "5432, 6379", "containerd.runtimes.crun": "/usr/bin/crun", "ports.hostNetworkPods": "true", "ports.externalIPs": "192.0.2.7, 198.51.100.0/24",
		"ports.annotations.namespaces": "team-a", "ports.annotations.bind": "true", "ports.privilegedPortOffset": "10000", "ports.privilegedPortFallback": "8000",
		"resources.cpu": "3", "resources.memory": "4Gi", "resources.pids": "4096", "resources.podPids": "100",
		"resources.memoryHighPercent": "90", "network.slirpSandbox": "true", "network.slirpSeccomp": "false",
	} {
		assert.NilError(t, c.Set(path, v))
	}
	c.Name = "other"
	c.Complete(HostFacts{Hostname: "Host1.", XDGDataHome: "/home/u/.local/share", XDGConfigHome: "/home/u/.config"})
	// These cannot be combined in a valid config, but are read and written.
	for path, v := range map[string]string{
		"registries.docker.io": "{mirrors: [https://m.example], mirrorsOnly: true}", "registries.a.example:5000": "{insecure: true}",
		"addons": "/a, /b", "nodeIP": "192.0.2.9", "join.server": "https://a.example:6443", "join.caCertHashes": "sha256:" + strings.Repeat("0a", 32),
		"join.bootstrapKubeconfig": "/b", "join.kubeconfig": "/k",
		// The same for settings of several runtimes.
		"cri.endpoint": "unix:///e", "crio.conmon": "/c", "crio.registriesConf": "/r", "crio.signaturePolicy": "/s",
	} {
		assert.NilError(t, c.Set(path, v))
	}
	for _, l := range c.leaves() {
		switch l.path {
		case "localRegistry.enabled", "network.allowHostLoopback", "network.allowHostAddresses", "network.ipv6", "containerd.nri", "crio.nri",
			"controlPlane.etcdUnsafeNoFsync":
			l.value.SetBool(true)
		case "kubelet.enforceNodeAllocatable":
			assert.NilError(t, c.Set(l.path, "pods"))
		}
		assert.Assert(t, !isEmpty(l.value), "%s is not set by this test", l.path)
	}
	return c
}

func TestComplete(t *testing.T) {
	t.Parallel()
	c := full(t)
	assert.Equal(t, c.UserAddons, "/home/u/.config/rootlessnode/addons")
	c.Join, c.CRI.Endpoint, c.CRIO, c.Registries = Join{}, "", Default().CRIO, nil
	assert.NilError(t, c.Validate())
	assert.Equal(t, c.NodeName, "host1")
	assert.Equal(t, c.DataDir, "/home/u/.local/share/rootlessnode/nodes/other")
	assert.Equal(t, c.Cluster.DNSAddress, "10.43.0.10")

	again := *c
	again.Complete(HostFacts{Hostname: "x", XDGDataHome: "/y"})
	assert.DeepEqual(t, &again, c)

	for _, b := range []struct {
		driver string
		ipv6   bool
		want   []string
	}{
		{DriverAuto, false, []string{"127.0.0.1"}},
		{DriverAuto, true, []string{"127.0.0.1", "::1"}},
		{PortsPesto, true, []string{"127.0.0.1", "::1"}},
		{DriverGvisor, true, []string{"127.0.0.1"}},
		{DriverSlirp, true, []string{"127.0.0.1"}},
	} {
		c := Default()
		c.Ports.Driver, c.Network.IPv6 = b.driver, b.ipv6
		c.Complete(HostFacts{Hostname: "h", XDGDataHome: "/y"})
		assert.DeepEqual(t, c.Ports.BindAddresses, b.want)
		c.Ports.BindAddresses = []string{"192.0.2.1"}
		c.Complete(HostFacts{})
		assert.DeepEqual(t, c.Ports.BindAddresses, []string{"192.0.2.1"})
	}

	for _, b := range []struct{ set, stop, want time.Duration }{
		{0, 90 * time.Second, 60 * time.Second},
		{0, 10 * time.Minute, 60 * time.Second},
		{0, 60 * time.Second, 30 * time.Second},
		{0, 15 * time.Second, 5 * time.Second},
		{0, 4 * time.Second, 2 * time.Second},
		{7 * time.Second, 90 * time.Second, 7 * time.Second},
	} {
		c := Default()
		c.Timeouts.PodStop, c.Timeouts.Stop = Duration(b.set), Duration(b.stop)
		c.Complete(HostFacts{})
		assert.Equal(t, c.Timeouts.PodStop.D(), b.want, "%v", b)
	}

	small := Default()
	small.Cluster.ServiceCIDR = "10.43.0.0/29"
	small.Complete(HostFacts{Hostname: "h", XDGDataHome: "/y"})
	assert.ErrorContains(t, small.Validate(), "cluster.serviceCIDR: 10.43.0.0/29: must have a prefix length between /12 and /28")
}

func TestUseName(t *testing.T) {
	t.Parallel()
	c := Default()
	assert.NilError(t, c.UseName("a"))
	assert.Equal(t, c.Name, "a")
	assert.NilError(t, c.UseName("a"))
	err := c.UseName("b")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.Equal(t, c.Name, "a")
}

func FuzzLoadBytes(f *testing.F) {
	f.Add(Sample())
	f.Add([]byte(head + "kubelet: {evictionHard: {a: b}}\n---\n"))
	f.Add([]byte("a: [&x, *x]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := LoadBytes(b, "f")
		if (c == nil) == (err == nil) {
			t.Fatalf("config %v, error %v", c, err)
		}
		if err != nil {
			return
		}
		out, err := Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := LoadBytes(out, "f"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	})
}
