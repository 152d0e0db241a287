package proxyenv

import (
	"testing"

	"gotest.tools/v3/assert"
)

func read(env map[string]string) Proxies { return Read(func(key string) string { return env[key] }) }

func TestEnv(t *testing.T) {
	t.Parallel()
	direct := []string{"10.42.0.0/16", ".svc", "", "a.example"}
	assert.Equal(t, len(read(map[string]string{"NO_PROXY": "x"}).Env(direct)), 0)
	assert.DeepEqual(t, read(map[string]string{"https_proxy": "http://p:1", "NO_PROXY": "a.example, b.example"}).Env(direct), []string{
		"HTTPS_PROXY=http://p:1", "https_proxy=http://p:1",
		"NO_PROXY=a.example,b.example,10.42.0.0/16,.svc", "no_proxy=a.example,b.example,10.42.0.0/16,.svc",
	})
	assert.DeepEqual(t, read(map[string]string{"HTTP_PROXY": "p", "http_proxy": "q", "no_proxy": "*"}).Env(direct),
		[]string{"HTTP_PROXY=p", "http_proxy=p", "NO_PROXY=*", "no_proxy=*"})
	assert.DeepEqual(t, None(), []string{"HTTP_PROXY=", "http_proxy=", "HTTPS_PROXY=", "https_proxy="})
}

func TestLoopbackPorts(t *testing.T) {
	t.Parallel()
	for value, want := range map[string][]int{
		"":                          nil,
		"http://proxy.example:3128": nil,
		"http://127.0.0.1:3128":     {3128},
		"http://u:p@localhost:8080": {8080},
		"LOCALHOST:3128":            {3128},
		"http://[::1]":              {80},
		"https://127.9.9.9/":        {443},
		"http://127.0.0.1:x":        nil,
		"http://10.0.0.1:3128":      nil,
	} {
		assert.DeepEqual(t, Proxies{HTTP: value, HTTPS: value}.LoopbackPorts(), want)
	}
}
