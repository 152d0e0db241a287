package portfwd

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/httputil"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// Reasons of Events and Warnings.
const (
	ReasonInUse       = "PortInUse"
	ReasonDenied      = "PortDenied"
	ReasonFiles       = "TooManyOpenFiles"
	ReasonConnections = "TooManyConnections" // of an open port
	ReasonProtocol    = "ProtocolNotForwarded"
	ReasonFamily      = "AddressFamilyNotForwarded"
	ReasonAddress     = "AddressNotAvailable"
	ReasonClash       = "PortClash"
	ReasonInvalid     = "PortInvalid"
	ReasonUnreachable = "PortManagerUnreachable"
	ReasonFailed      = "PortFailed"
	ReasonOpen        = "PortForwarded"
	ReasonNoDriver    = "NoPortDriver"
	ReasonAnnotation  = "AnnotationInvalid"
	ReasonNoEndpoint  = "NoReadyEndpoint"
	// ReasonNotAllowed: an annotation or a pod's hostIP that the config does not allow.
	ReasonNotAllowed = "NotAllowed"
	// ReasonExternalIPs: the external addresses of a Service are not forwarded.
	ReasonExternalIPs = "ExternalIPsIgnored"
	// ReasonSourcesInvalid: the source ranges of a Service are malformed. ReasonSources: they cannot be enforced.
	ReasonSourcesInvalid = "SourceRangesInvalid"
	ReasonSources        = "SourceRangesNotEnforced"
	// ReasonTooMany: Config.MaxForwards is reached.
	ReasonTooMany = "TooManyPorts"
)

// fault is a refusal with its kind.
type fault struct {
	reason string
	err    error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

// reasonOf tells refusals apart. RootlessKit answers all of them with status 400 and a text, and the host on which it
// binds cannot be probed from inside the node, so the text has to do. Anything that is not an answer of RootlessKit is
// ReasonUnreachable: what became of the request is then unknown.
func reasonOf(err error) string {
	var f *fault
	if errors.As(err, &f) {
		return f.reason
	}
	var answered *httputil.HTTPStatusError
	if !errors.As(err, &answered) {
		return ReasonUnreachable
	}
	text := answered.Error()
	for _, k := range [...]struct{ text, reason string }{
		{"conflict with ID", ReasonClash},
		{"address already in use", ReasonInUse},
		{"permission denied", ReasonDenied},
		{"cannot expose privileged port", ReasonDenied},
		{"too many open files", ReasonFiles},
		{"cannot assign requested address", ReasonAddress},
		{"unsupported port protocol", ReasonProtocol},
		{"unknown proto", ReasonProtocol},
		{"address family not supported", ReasonFamily},
		{"no PortDriver", ReasonNoDriver},
		{"invalid Parent", ReasonInvalid},
		{"invalid Child", ReasonInvalid},
	} {
		if strings.Contains(text, k.text) {
			return k.reason
		}
	}
	return ReasonFailed
}

// isUnknownID: the forward to be removed is not there. RootlessKit's drivers say so in words of their own: builtin and
// slirp4netns, gvisor-tap-vsock, pesto.
func isUnknownID(err error) bool {
	var answered *httputil.HTTPStatusError
	return errors.As(err, &answered) && slices.ContainsFunc([]string{"unknown id", "unknown port id", "invalid ID"},
		func(text string) bool { return strings.Contains(answered.Error(), text) })
}

// pace bounds the back-off of one port.
type pace struct{ first, limit time.Duration }

// paceOf: what another program, a person or the host can put right at any moment is asked for at least every two
// seconds, since asking is the probe and costs a fraction of a millisecond. What only another RootlessKit could do is
// asked for seldom.
func paceOf(reason string) pace {
	switch reason {
	case ReasonInUse, ReasonClash, ReasonUnreachable:
		return pace{100 * time.Millisecond, time.Second}
	case ReasonFiles, ReasonAddress, ReasonDenied:
		return pace{250 * time.Millisecond, 1500 * time.Millisecond}
	case ReasonFailed:
		return pace{250 * time.Millisecond, 5 * time.Second}
	}
	return pace{time.Second, 30 * time.Second}
}

// hintOf is the way out of a refusal, or empty.
func hintOf(reason string, b Bind, cfg Config, text string) string {
	switch reason {
	case ReasonInUse:
		return fmt.Sprintf("another program on the host listens on port %d; see who with: ss -%snlp 'sport = :%d'",
			b.Port, b.Proto[:1], b.Port)
	case ReasonDenied:
		return deniedHint(b, cfg, text)
	case ReasonFiles, ReasonConnections:
		return "raise the limit of open files (ulimit -n, LimitNOFILE=) of the node's parent process"
	case ReasonAddress:
		return fmt.Sprintf("%s is no address of this host; see: ip address", b.IP)
	case ReasonFamily:
		return "the node has no IPv6; set network.ipv6: true, or bind IPv4 addresses only"
	case ReasonProtocol:
		return "the port driver cannot forward this protocol; choose another port.driver"
	case ReasonClash:
		return "somebody else added a forward through RootlessKit's API: remove it there, or leave it"
	case ReasonNoDriver:
		return "the node runs without a port driver; set port.driver"
	}
	return ""
}

// deniedHint names the three ways to a privileged port. The limit is the host's; inside it cannot be read, but
// RootlessKit's refusal quotes it.
func deniedHint(b Bind, cfg Config, text string) string {
	start := cfg.UnprivilegedPortStart
	if _, rest, ok := strings.Cut(text, "(currently "); ok {
		digits, _, _ := strings.Cut(rest, ")")
		if n, err := strconv.Atoi(digits); err == nil {
			start = n
		}
	}
	if start == 0 || b.Port >= start {
		return fmt.Sprintf("the host forbids binding port %d; see: sysctl net.ipv4.ip_unprivileged_port_start", b.Port)
	}
	return fmt.Sprintf("ports below %d are privileged on the host (net.ipv4.ip_unprivileged_port_start=%d); as root, either\n"+
		"  sysctl -w net.ipv4.ip_unprivileged_port_start=%d    # until the next boot; for longer: in %s\n"+
		"or, effective from the next start,\n"+
		"  setcap cap_net_bind_service=+ep /path/to/rootlessnode\n"+
		"or choose a port from %d on (for Services and pods, ports.privilegedPortOffset: 10000 makes this one %d)",
		start, start, b.Port, hostinfo.SysctlFile, start, b.Port+10000)
}
