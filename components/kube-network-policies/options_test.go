package main

import (
	"io"
	"testing"

	"gotest.tools/v3/assert"
)

func TestParseOptions(t *testing.T) {
	o, err := parseOptions([]string{"--kubeconfig=/kc", "--hostname-override", "a", "--metrics-bind-address=127.0.0.1:1", "--nfqueue-id=7", "-v=2"}, io.Discard)
	assert.NilError(t, err)
	assert.Equal(t, o, options{kubeconfig: "/kc", hostname: "a", address: "127.0.0.1:1", queueID: 7, netfilterBug1766Fix: true})
	o, err = parseOptions([]string{"--version"}, io.Discard)
	assert.NilError(t, err)
	assert.Assert(t, o.version)
}

func TestParseOptionsRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		args  []string
		wants []string
	}{
		"all at once": {
			[]string{"--metrics-bind-address=:1", "--nfqueue-id=0"},
			[]string{"--kubeconfig: must be set", "--hostname-override: must be set", "--metrics-bind-address", "--nfqueue-id: 0 is not"},
		},
		"too large":     {[]string{"--nfqueue-id=65536"}, []string{"--nfqueue-id: 65536 is not"}},
		"an argument":   {[]string{"x"}, []string{`unexpected argument "x"`}},
		"no such thing": {[]string{"--admin-network-policy"}, []string{"not defined: -admin-network-policy"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseOptions(test.args, io.Discard)
			for _, want := range test.wants {
				assert.ErrorContains(t, err, want)
			}
		})
	}
}
