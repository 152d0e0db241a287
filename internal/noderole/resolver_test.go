package noderole

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func TestNameServers(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name, driver string
		ipv6         bool
		dns, host    string
		want         string
	}{
		{"the second replaces the first when it is down", "slirp4netns", false, "10.0.2.3", "192.0.2.1 192.0.2.2", "10.0.2.3 192.0.2.2"},
		{"a resolver on loopback has its own servers", "pasta", false, "10.0.2.3", "127.0.0.53", "10.0.2.3"},
		{"loopback is not reachable", "slirp4netns", false, "10.0.2.3", "192.0.2.1 127.0.0.1 192.0.2.1", "10.0.2.3 192.0.2.1"},
		{"at most three", "slirp4netns", false, "10.0.2.3", "192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4", "10.0.2.3 192.0.2.2 192.0.2.3"},
		{"IPv6 only", "slirp4netns", true, "10.0.2.3", "2001:db8::1 fe80::1%eth0", "fd00::3"},
		{"IPv6 first", "slirp4netns", true, "10.0.2.3", "2001:db8::1 192.0.2.1", "10.0.2.3 fd00::3"},
		{"IPv6 without network.ipv6", "slirp4netns", false, "10.0.2.3", "2001:db8::1", "10.0.2.3"},
		{"DHCP", "lxc-user-nic", false, "10.0.3.1", "192.0.2.1 192.0.2.2", "10.0.3.1"},
		{"no uplink", "none", false, "", "192.0.2.1 192.0.2.2", ""},
		{"not an address", "slirp4netns", false, "10.0.2.3", "x 192.0.2.1", "10.0.2.3"},
	} {
		cfg := config.Default()
		cfg.Network.IPv6 = x.ipv6
		got := nameServers(cfg, layout.NetworkInfo{Driver: x.driver, DNS: strings.Fields(x.dns)}, hostinfo.Resolver{Servers: strings.Fields(x.host)})
		assert.Check(t, is.Equal(strings.Join(got, " "), x.want), x.name)
	}
}

// TestResolverFollowsTheHost checks that new search domains of the host reach the files of the node.
func TestResolverFollowsTheHost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := component.Env{Config: config.Default(), NameServers: []string{"10.0.2.3"}}
	r := &resolver{env: e, host: filepath.Join(dir, "host.json"), own: filepath.Join(dir, "resolv.conf"), write: func(list []component.File) error {
		list[0].Path = filepath.Join(dir, "pods.conf")
		return component.Write(list)
	}}
	has := func(want string) {
		t.Helper()
		for _, name := range []string{"resolv.conf", "pods.conf"} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			assert.NilError(t, err)
			assert.Equal(t, string(b), want)
		}
	}
	assert.NilError(t, layout.WriteJSON(r.host, hostinfo.Resolver{Search: []string{"a.example"}, Options: []string{"rotate", "timeout:1"}}))
	ctx, cancel := context.WithCancel(t.Context())
	ended, ready := make(chan error), make(chan struct{}, 9)
	go func() { ended <- r.Run(ctx, func() { ready <- struct{}{} }) }()
	<-ready
	has("nameserver 10.0.2.3\nsearch a.example\noptions rotate timeout:1\n")
	assert.NilError(t, layout.WriteJSON(r.host, hostinfo.Resolver{Search: []string{"vpn.example", "a.example"}}))
	<-ready
	has("nameserver 10.0.2.3\nsearch vpn.example a.example\n")
	cancel()
	assert.NilError(t, <-ended)
	_, err := kubelet.ResolvConf(component.Env{Config: config.Default()}, hostinfo.Resolver{})
	assert.ErrorContains(t, err, "no name servers for pods")
}

func TestRouteCondition(t *testing.T) {
	t.Parallel()
	assert.DeepEqual(t, routeCondition(nil), status.Condition{OK: true})
	c := routeCondition([]layout.RouteOverlap{
		{Field: "cluster.podCIDR", Range: "10.42.0.0/16", Route: "10.42.0.0/15", Device: "tun0", Free: "10.142.0.0/16"},
		{Field: "cluster.serviceCIDR", Range: "10.43.0.0/16", Route: "10.42.0.0/15", Device: "tun0", Free: "10.143.0.0/16"},
	})
	assert.Check(t, c.OK && c.Warning && c.Reason == "RouteOverlap", "the cluster works: %+v", c)
	assert.Check(t, is.Contains(c.Message, "the host's route to 10.42.0.0/15 (tun0) overlaps cluster.podCIDR 10.42.0.0/16"))
	assert.Check(t, is.Contains(c.Steps.String(), "cluster.podCIDR=10.142.0.0/16"))
	assert.Check(t, is.Contains(c.Steps.String(), "a new cluster is needed"))
}
