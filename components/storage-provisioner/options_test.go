package main

import (
	"io"
	"testing"

	"gotest.tools/v3/assert"
)

func TestParseOptions(t *testing.T) {
	o, err := parseOptions([]string{"--kubeconfig=/kc", "--node-name", "a", "--node-label=example.com/x=y", "--dir=/v", "-v=2"}, io.Discard)
	assert.NilError(t, err)
	assert.Equal(t, o, options{kubeconfig: "/kc", node: "a", label: "example.com/x", labelValue: "y", dir: "/v", address: "127.0.0.1:8474"})
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
			[]string{"--bind-address=:1", "--dir=v/", "--node-label=x="},
			[]string{"--kubeconfig: must be set", "--node-name: must be set", "--node-label: must be KEY=VALUE", `--dir: "v/"`, "--bind-address"},
		},
		"an argument":   {[]string{"x"}, []string{`unexpected argument "x"`}},
		"no such thing": {[]string{"--quota"}, []string{"not defined: -quota"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseOptions(test.args, io.Discard)
			for _, want := range test.wants {
				assert.ErrorContains(t, err, want)
			}
		})
	}
}
