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
	// ReasonNotAllowed means that the config does not allow an annotation or the hostIP of a pod.
	ReasonNotAllowed = "NotAllowed"
	// ReasonExternalIPs means that the external addresses of a Service are not forwarded.
	ReasonExternalIPs = "ExternalIPsIgnored"
	// ReasonSourcesInvalid means that the source ranges of a Service are malformed, ReasonSources that they cannot be
	// enforced.
	ReasonSourcesInvalid = "SourceRangesInvalid"
	ReasonSources        = "SourceRangesNotEnforced"
	// ReasonTooMany means that Config.MaxForwards is reached.
	ReasonTooMany = "TooManyPorts"
)

// fault is an error with one of the Reason constants.
type fault struct {
	reason string
	err    error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

// reasonOf returns the Reason constant of an error of the port manager. RootlessKit answers all refusals with status 400 and
// a text, and the host cannot be probed from inside the node, so the text is matched. Any other error is ReasonUnreachable:
// the outcome of the request is then unknown.
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

// isUnknownID reports whether err means that the forward to remove does not exist. The drivers of RootlessKit use different
// texts: builtin and slirp4netns, gvisor-tap-vsock, pesto.
func isUnknownID(err error) bool {
	var answered *httputil.HTTPStatusError
	return errors.As(err, &answered) && slices.ContainsFunc([]string{"unknown id", "unknown port id", "invalid ID"},
		func(text string) bool { return strings.Contains(answered.Error(), text) })
}

// backoff bounds the delay between two attempts for one port.
type backoff struct{ first, limit time.Duration }

// backoffFor returns the back-off of a reason. Causes that another program, the user or the host can remove at any moment
// are retried at least every two seconds, because a retry takes a fraction of a millisecond. Causes that need root on the
// host or another RootlessKit are retried rarely.
func backoffFor(reason string) backoff {
	switch reason {
	case ReasonInUse, ReasonClash, ReasonUnreachable:
		return backoff{100 * time.Millisecond, time.Second}
	case ReasonFiles, ReasonAddress:
		return backoff{250 * time.Millisecond, 1500 * time.Millisecond}
	case ReasonDenied:
		return backoff{250 * time.Millisecond, time.Minute}
	case ReasonFailed:
		return backoff{250 * time.Millisecond, 5 * time.Second}
	}
	return backoff{time.Second, 30 * time.Second}
}

// hintOf returns the fix for a refusal, or an empty string.
func hintOf(reason string, b Bind, cfg Config, text string) string {
	switch reason {
	case ReasonInUse:
		return fmt.Sprintf("another program on the host listens on port %d; find it with: ss -%snlp 'sport = :%d'",
			b.Port, b.Proto[:1], b.Port)
	case ReasonDenied:
		return deniedHint(b, cfg, text)
	case ReasonFiles, ReasonConnections:
		return "raise the limit of open files (ulimit -n, LimitNOFILE=) of the node's parent process"
	case ReasonAddress:
		return fmt.Sprintf("%s is not an address of this host; list the addresses with: ip address", b.IP)
	case ReasonFamily:
		return "the node has no IPv6; set network.ipv6: true, or bind IPv4 addresses only"
	case ReasonProtocol:
		return "the port driver cannot forward this protocol; choose another port.driver"
	case ReasonClash:
		return "a forward of this port was added through RootlessKit's API; remove it there, or use another host port"
	case ReasonNoDriver:
		return "the node has no port driver; set port.driver"
	}
	return ""
}

// deniedHint names the three ways to bind a privileged port. The limit is a sysctl of the host that cannot be read inside,
// but RootlessKit's refusal quotes it.
func deniedHint(b Bind, cfg Config, text string) string {
	start := cfg.UnprivilegedPortStart
	if _, rest, ok := strings.Cut(text, "(currently "); ok {
		digits, _, _ := strings.Cut(rest, ")")
		if n, err := strconv.Atoi(digits); err == nil {
			start = n
		}
	}
	if start == 0 || b.Port >= start {
		return fmt.Sprintf("the host does not permit binding port %d; check: sysctl net.ipv4.ip_unprivileged_port_start", b.Port)
	}
	return fmt.Sprintf("ports below %d are privileged on the host (net.ipv4.ip_unprivileged_port_start=%d); as root, either\n"+
		"  sysctl -w net.ipv4.ip_unprivileged_port_start=%d    # until the next boot; to make it persistent, set it in %s\n"+
		"or, effective at the next start of the node,\n"+
		"  setcap cap_net_bind_service=+ep /path/to/rootlessnode\n"+
		"or use a port of %d or above (for Services and pods, %s)",
		start, start, b.Port, hostinfo.SysctlFile, start, alternative(b, cfg))
}

// alternative describes the port that a Service or a pod can have in place of a privileged one.
func alternative(b Bind, cfg Config) string {
	if cfg.PrivilegedPortFallback != 0 {
		return fmt.Sprintf("ports.privilegedPortFallback forwards port %d instead", b.Port+cfg.PrivilegedPortFallback)
	}
	const usual = 8000
	return fmt.Sprintf("ports.privilegedPortFallback: %d forwards port %d instead", usual, b.Port+usual)
}
