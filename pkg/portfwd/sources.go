package portfwd

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// AnnotationSourceRanges is the older Kubernetes name of spec.loadBalancerSourceRanges: comma-separated CIDRs. It applies
// only if that field is empty.
const AnnotationSourceRanges = "service.beta.kubernetes.io/load-balancer-source-ranges"

// maxSourceRanges limits the ranges of one Service, because each client is compared with all of them.
const maxSourceRanges = 256

// SourceRanges are the clients that may connect to a port: "" for all, SourcesNone, or canonical CIDRs, sorted and
// comma-separated.
type SourceRanges string

// SourcesNone allows no client.
const SourcesNone SourceRanges = "none"

// Prefixes returns the ranges; nil means all clients, an empty list no client.
func (s SourceRanges) Prefixes() []netip.Prefix {
	switch s {
	case "":
		return nil
	case SourcesNone:
		return []netip.Prefix{}
	}
	var list []netip.Prefix
	for text := range strings.SplitSeq(string(s), ",") {
		if p, err := netip.ParsePrefix(text); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// SourceFilter rejects clients of forwarded ports by their address. The port driver implements it, because only the program
// that accepts the connections sees the client's address.
type SourceFilter interface {
	// SetSources replaces all earlier ranges. A port at one of these places accepts only clients whose address is in one of
	// the prefixes; other ports accept all clients. It applies to open ports and to ports that open later. When it returns,
	// the ranges are in force and connections of clients that are no longer allowed have been closed.
	SetSources(ctx context.Context, allowed map[Bind][]netip.Prefix) error
}

// sourceRanges returns the ranges of a Service. Anything malformed is an error, and the Service's ports then stay closed.
func (s Service) sourceRanges() (SourceRanges, error) {
	if s.Type != "LoadBalancer" {
		return "", nil
	}
	list, from := s.LoadBalancerSourceRanges, "spec.loadBalancerSourceRanges"
	if len(list) == 0 {
		text := strings.TrimSpace(s.Annotations[AnnotationSourceRanges])
		if text == "" {
			return "", nil
		}
		list, from = strings.Split(text, ","), "annotation "+AnnotationSourceRanges
	}
	if len(list) > maxSourceRanges {
		return "", fmt.Errorf("%s: too many ranges: %d, the limit is %d", from, len(list), maxSourceRanges)
	}
	var ranges []string
	for _, text := range list {
		p, err := parseSourceRange(text)
		if err != nil {
			return "", fmt.Errorf("%s: %w", from, err)
		}
		ranges = append(ranges, p.String())
	}
	slices.Sort(ranges)
	return SourceRanges(strings.Join(slices.Compact(ranges), ",")), nil
}

// parseSourceRange parses one CIDR. An IPv4-mapped range (::ffff:192.0.2.0/120) means the IPv4 range.
func parseSourceRange(text string) (netip.Prefix, error) {
	const mapped = 96 // bits before the IPv4 address
	p, err := netip.ParsePrefix(strings.TrimSpace(text))
	if err != nil {
		return p, fmt.Errorf("invalid CIDR %s: use a form such as 192.0.2.0/24", quote(text))
	}
	if p.Addr().Is4In6() {
		if p.Bits() < mapped {
			return p, fmt.Errorf("invalid CIDR %s: the prefix length of an IPv4-mapped range must be at least %d", quote(text), mapped)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
	}
	return p.Masked(), nil
}

// maxQuoted limits the number of characters of an API value in a message.
const maxQuoted = 64

// quote formats a value of a cluster user for a message: on one line, without control characters, and short.
func quote(s string) string {
	if runes := []rune(s); len(runes) > maxQuoted {
		s = string(runes[:maxQuoted]) + "…"
	}
	return fmt.Sprintf("%q", s)
}
