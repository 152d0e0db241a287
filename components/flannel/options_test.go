package main

import (
	"io"
	"testing"

	"gotest.tools/v3/assert"
)

func TestParseOptions(t *testing.T) {
	o, err := parseOptions([]string{
		"--kube-subnet-mgr", "--kubeconfig-file=/kc", "-iface", "tap0", "--iface=eth0", "--iface-regex", "^tap",
		"--public-ip=192.0.2.1", "--ip-masq", "--iptables-forward-rules=false", "--healthz-port=10401", "-v=2",
	}, io.Discard)
	assert.NilError(t, err)
	assert.DeepEqual(t, []string(o.iface), []string{"tap0", "eth0"})
	assert.DeepEqual(t, []string(o.ifaceRegex), []string{"^tap"})
	assert.Equal(t, o.kubeconfigFile, "/kc")
	assert.Equal(t, o.publicIP, "192.0.2.1")
	assert.Equal(t, o.healthzPort, 10401)
	assert.Assert(t, o.ipMasq && !o.iptablesForwardRules)
}

// The defaults must be those of upstream, so that its documentation applies.
func TestParseOptionsDefaults(t *testing.T) {
	o, err := parseOptions(nil, io.Discard)
	assert.NilError(t, err)
	assert.Equal(t, o.subnetFile, "/run/flannel/subnet.env")
	assert.Equal(t, o.netConfigPath, "/etc/kube-flannel/net-conf.json")
	assert.Equal(t, o.kubeAnnotationPrefix, "flannel.alpha.coreos.com")
	assert.Equal(t, o.iptablesResync, 5)
	assert.Assert(t, o.iptablesForwardRules && o.setNodeNetworkUnavailable && !o.ipMasq)
}

func TestParseOptionsRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		args  []string
		wants []string
	}{
		"etcd":       {[]string{"--kube-subnet-mgr=false"}, []string{"--kube-subnet-mgr"}},
		"unknown":    {[]string{"--etcd-endpoints=x"}, []string{"etcd-endpoints"}},
		"argument":   {[]string{"start"}, []string{`"start"`}},
		"all faults": {[]string{"--public-ip=::1", "--iptables-resync=0", "--iface-regex=("}, []string{"--public-ip", "--iptables-resync", "--iface-regex"}},
		"port":       {[]string{"--healthz-port=65536"}, []string{"--healthz-port"}},
		"no address": {[]string{"--iface-can-reach=example.org"}, []string{"--iface-can-reach"}},
		"no file":    {[]string{"--subnet-file="}, []string{"--subnet-file"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseOptions(test.args, io.Discard)
			for _, want := range test.wants {
				assert.ErrorContains(t, err, want)
			}
		})
	}
}
