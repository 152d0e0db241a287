package hostinfo

import (
	"os"
	"strings"
)

// ResolvConf is the host's resolver configuration.
const ResolvConf = "/etc/resolv.conf"

// Resolver is the content of a resolv.conf(5): the name servers, search domains and options.
type Resolver struct {
	Servers []string `json:"servers"`
	Search  []string `json:"search,omitempty"`
	Options []string `json:"options,omitempty"`
}

// ReadResolver reads a resolv.conf(5).
func ReadResolver(path string) (Resolver, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Resolver{}, err
	}
	return ParseResolver(string(b)), nil
}

// ParseResolver parses a resolv.conf(5). As in the C library, the last search list counts, and domain is a list of one.
func ParseResolver(text string) Resolver {
	var r Resolver
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			r.Servers = append(r.Servers, f[1])
		case "search":
			r.Search = searchDomains(f[1:])
		case "domain":
			r.Search = searchDomains(f[1:2])
		case "options":
			r.Options = append(r.Options, f[1:]...)
		}
	}
	return r
}

// searchDomains leaves out the root, which systemd-resolved writes if there is no search domain.
func searchDomains(list []string) (out []string) {
	for _, d := range list {
		if d = strings.TrimSuffix(d, "."); d != "" {
			out = append(out, d)
		}
	}
	return out
}
