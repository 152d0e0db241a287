package portfwd

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// AnnotationSourceRanges is Kubernetes' older name of spec.loadBalancerSourceRanges: CIDRs with commas between. It counts
// only where the field is empty.
const AnnotationSourceRanges = "service.beta.kubernetes.io/load-balancer-source-ranges"

// maxSourceRanges limits the ranges of one Service, because each client is compared with all of them.
const maxSourceRanges = 256

// SourceRanges are the clients that may connect to a port: "" for all, SourcesNone, or CIDRs in canonical form, sorted,
// with commas between.
type SourceRanges string

// SourcesNone allows no client.
const SourcesNone SourceRanges = "none"

// Prefixes returns the ranges; nil for all clients, an empty list for none.
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

// SourceFilter refuses clients of forwarded ports by their address. The port driver that accepts the connections
// implements it, because only that driver knows the client's address.
type SourceFilter interface {
	// SetSources replaces what was set before: a port at one of these places accepts clients whose address is in one of the
	// prefixes, and no others; ports elsewhere accept all. It applies to open ports and to ports that open later. It
	// returns when it is in force: connections of clients that are not allowed any more have been closed.
	SetSources(ctx context.Context, allowed map[Bind][]netip.Prefix) error
}

// sourceRanges reads the ranges of a Service. Anything malformed is an error, and the Service's ports stay closed.
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
		return "", fmt.Errorf("%s: %d ranges, more than %d", from, len(list), maxSourceRanges)
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

// parseSourceRange reads one CIDR. IPv4 written as IPv6 (::ffff:192.0.2.0/120) means the IPv4 range.
func parseSourceRange(text string) (netip.Prefix, error) {
	const mapped = 96 // bits before the IPv4 address
	p, err := netip.ParsePrefix(strings.TrimSpace(text))
	if err != nil {
		return p, fmt.Errorf("%s: want a CIDR such as 192.0.2.0/24", quote(text))
	}
	if p.Addr().Is4In6() {
		if p.Bits() < mapped {
			return p, fmt.Errorf("%s: an IPv4 range written as IPv6 has at least %d bits", quote(text), mapped)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
	}
	return p.Masked(), nil
}

// maxQuoted bounds how much of a value from the API goes into a message.
const maxQuoted = 64

// quote shows a value that a user of the cluster wrote: on one line, without control characters, and short.
func quote(s string) string {
	if runes := []rune(s); len(runes) > maxQuoted {
		s = string(runes[:maxQuoted]) + "…"
	}
	return fmt.Sprintf("%q", s)
}
