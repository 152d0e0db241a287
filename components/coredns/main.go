// Command coredns is the CoreDNS server with only the plugins that a cluster's
// DNS needs. Upstream's program also links the clients of three clouds and
// several tracing systems, which make it several times as large.
//
// The server, its flags and every plugin are upstream's, unchanged. A Corefile
// with another plugin is rejected at start, like an unknown directive in
// upstream's program.
package main

import (
	"github.com/coredns/coredns/coremain"

	// A plugin registers itself when it is imported. The order in which plugins
	// see a query is fixed by the server, not by these lines.
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/cancel"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metadata"
	_ "github.com/coredns/coredns/plugin/metrics" // the directive "prometheus"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/rewrite"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	coremain.Run()
}
