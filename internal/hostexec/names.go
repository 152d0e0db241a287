package hostexec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// ResolvConf returns a resolv.conf(5) with which names resolve as in a pod of the namespace default: by the cluster's name server, with the
// search domains of the cluster and those in host, the host's file.
func ResolvConf(server, domain, host string) string {
	found := hostinfo.ParseResolver(host)
	search := append([]string{"default.svc." + domain, "svc." + domain, domain}, found.Search...)
	options := slices.DeleteFunc(found.Options, func(s string) bool { return strings.HasPrefix(s, "ndots:") || s == "trust-ad" })
	return fmt.Sprintf("nameserver %s\nsearch %s\noptions %s\n", server, strings.Join(search, " "), strings.Join(append(options, "ndots:5"), " "))
}

// Hosts returns a hosts(5) file: that of the host, and one more name.
func Hosts(address, name, host string) string {
	if host != "" && !strings.HasSuffix(host, "\n") {
		host += "\n"
	}
	return host + address + " " + name + "\n"
}

// NSSwitch returns an nsswitch.conf(5) with which host names are resolved by hosts(5) and resolv.conf(5) only, because other services, such
// as systemd-resolved, use the host's network.
func NSSwitch(host string) string {
	var b strings.Builder
	for line := range strings.Lines(host) {
		if strings.HasPrefix(strings.TrimSpace(line), "hosts:") {
			line = "hosts: files dns\n"
		}
		b.WriteString(line)
	}
	return b.String()
}
