package portfwd

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// AnnotationPrefix is the prefix of all annotations that this package reads.
const AnnotationPrefix = "rootlessnode.dev/"

// Annotations of Services; the first two also apply to pods.
const (
	// AnnotationForward "false" excludes the object; "true" is the default.
	AnnotationForward = AnnotationPrefix + "forward"
	// AnnotationBind replaces Config.BindAddresses: a comma-separated list of host addresses and interface names.
	AnnotationBind = AnnotationPrefix + "bind"
	// AnnotationHostPort chooses host ports: a number for a Service whose ports all have the same number, otherwise a list
	// of port names or numbers such as "web=8080,53=5353". It replaces the node port (type NodePort) or the port (type
	// LoadBalancer, external addresses).
	AnnotationHostPort = AnnotationPrefix + "host-port"
)

// choices are the parsed annotations. Config.AnnotationNamespaces limits AnnotationBind and AnnotationHostPort to some
// namespaces; AnnotationForward is allowed everywhere, because it opens nothing.
type choices struct {
	off  bool
	bind []netip.Addr // nil: use the config
	// ports maps a port's name or number to the host port.
	ports map[string]int
	// all is the host port of all ports; 0 if not set.
	all int
}

// parseChoices parses the annotations of a Service or pod. Anything malformed or not allowed is an error, so that no port is
// opened by a guess.
func parseChoices(namespace string, annotations map[string]string, cfg Config) (choices, error) {
	var c choices
	if v, ok := annotations[AnnotationForward]; ok {
		switch v {
		case "true":
		case "false":
			c.off = true
		default:
			return c, fmt.Errorf("annotation %s: invalid value %s: must be true or false", AnnotationForward, quote(v))
		}
	}
	for _, name := range []string{AnnotationBind, AnnotationHostPort} {
		if _, ok := annotations[name]; ok && !c.off && !cfg.annotates(namespace) {
			return c, &notAllowed{fmt.Sprintf("annotation %s: not allowed in namespace %s", name, namespace)}
		}
	}
	if v, ok := annotations[AnnotationBind]; ok {
		addrs, err := ResolveBind(strings.Split(v, ","), cfg.HostAddresses)
		if err != nil {
			return c, fmt.Errorf("annotation %s: %w", AnnotationBind, err)
		}
		c.bind = distinct(addrs)
		for _, a := range c.bind {
			if !c.off && !cfg.mayBind(namespace, a) {
				return c, &notAllowed{fmt.Sprintf("annotation %s: %s is not an allowed bind address", AnnotationBind, a)}
			}
		}
	}
	if v, ok := annotations[AnnotationHostPort]; ok {
		if err := c.parsePorts(v); err != nil {
			return c, fmt.Errorf("annotation %s: %w", AnnotationHostPort, err)
		}
	}
	return c, nil
}

// notAllowed is an annotation that the configuration does not allow for a Service or a pod.
type notAllowed struct{ what string }

func (e *notAllowed) Error() string { return e.what }

// reasonOfChoice distinguishes a malformed annotation from one that is not allowed.
func reasonOfChoice(err error) string {
	if _, policy := errors.AsType[*notAllowed](err); policy {
		return ReasonNotAllowed
	}
	return ReasonAnnotation
}

// annotates reports whether Services and pods of a namespace may choose host ports and addresses.
func (c Config) annotates(namespace string) bool {
	return c.AnnotationNamespaces == nil || slices.Contains(c.AnnotationNamespaces, namespace)
}

// mayBind reports whether a Service or pod of a namespace may choose the address a.
func (c Config) mayBind(namespace string, a netip.Addr) bool {
	return c.BindAnywhere && c.annotates(namespace) || slices.ContainsFunc(c.BindAddresses, func(b netip.Addr) bool {
		return a == b || b.IsUnspecified() && b.Is4() == a.Is4()
	})
}

func (c *choices) parsePorts(v string) error {
	if !strings.Contains(v, "=") {
		n, err := parsePort(v)
		c.all = n
		return err
	}
	c.ports = map[string]int{}
	for entry := range strings.SplitSeq(v, ",") {
		name, number, ok := strings.Cut(strings.TrimSpace(entry), "=")
		if !ok || name == "" {
			return fmt.Errorf("invalid entry %s: must be PORT=HOSTPORT", quote(entry))
		}
		if _, twice := c.ports[name]; twice {
			return fmt.Errorf("duplicate port %s", quote(name))
		}
		n, err := parsePort(number)
		if err != nil {
			return err
		}
		c.ports[name] = n
	}
	return nil
}

func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("invalid port %s: must be between 1 and 65535", quote(s))
	}
	return int(n), nil
}

// validate returns an error if the chosen host ports name ports that the Service does not have.
func (c *choices) validate(s Service) error {
	numbers := map[int]bool{}
	known := map[string]bool{}
	for _, p := range s.Ports {
		numbers[p.Port] = true
		known[strconv.Itoa(p.Port)], known[cmp.Or(p.Name, "-")] = true, true
	}
	if c.all != 0 && len(numbers) > 1 {
		return fmt.Errorf("annotation %s: %d is ambiguous because the Service has %d ports; use NAME=%d", AnnotationHostPort, c.all, len(numbers), c.all)
	}
	for _, name := range sortedKeys(c.ports) {
		if !known[name] {
			return fmt.Errorf("annotation %s: the Service has no port %s", AnnotationHostPort, quote(name))
		}
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// hostPort returns the chosen host port of p, or 0.
func (c *choices) hostPort(p ServicePort) int {
	return cmp.Or(c.ports[p.Name], c.ports[strconv.Itoa(p.Port)], c.all)
}

// ResolveBind resolves a list of addresses and interface names into addresses. An interface stands for all its addresses in
// host, except IPv6 link-local ones, which cannot be bound without the interface. It is pure.
func ResolveBind(list []string, host []HostAddress) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, entry := range list {
		entry = strings.TrimSpace(entry)
		if ip, err := netip.ParseAddr(entry); err == nil && ip.Zone() == "" {
			addrs = append(addrs, ip.Unmap())
			continue
		}
		found := false
		for _, h := range host {
			if h.Interface == entry && entry != "" {
				found = true
				if !h.IP.IsLinkLocalUnicast() || h.IP.Is4() {
					addrs = append(addrs, h.IP.Unmap())
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("%s is neither an IP address nor a host interface with an address", quote(entry))
		}
	}
	return addrs, nil
}

// distinct drops duplicates and addresses that an unspecified address of their family covers.
func distinct(addrs []netip.Addr) []netip.Addr {
	var all4, all6 bool
	for _, a := range addrs {
		all4 = all4 || a.IsUnspecified() && a.Unmap().Is4()
		all6 = all6 || a.IsUnspecified() && !a.Unmap().Is4()
	}
	kept := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		a = a.Unmap()
		covered := !a.IsUnspecified() && (a.Is4() && all4 || !a.Is4() && all6)
		if a.IsValid() && !covered && !slices.Contains(kept, a) {
			kept = append(kept, a)
		}
	}
	return kept
}
