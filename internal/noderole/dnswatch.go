package noderole

import (
	"context"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/coredns"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

const (
	// dnsFirstTimeout limits the first query after a change of the pods. The limit doubles up to dnsTimeout, so that a lost query
	// during the start of the pods costs little time, and a slow answer is accepted.
	dnsFirstTimeout = 250 * time.Millisecond
	dnsTimeout      = 2 * time.Second
	// dnsDiagnosis limits the search for the cause after a failed query.
	dnsDiagnosis = 5 * time.Second
	// dnsFast is the interval between two queries until the first success, dnsFailing while queries fail, dnsSlow otherwise.
	dnsFast    = 250 * time.Millisecond
	dnsFailing = time.Second
	dnsSlow    = 10 * time.Second
	// dnsPatience is how long the first success may take before the condition is false. The pods of the DNS have to start.
	dnsPatience = 30 * time.Second
	// dnsTolerance is how long queries may fail after a success before the condition is false.
	dnsTolerance = 2 * time.Second
)

// dnsWatch queries the cluster DNS through the address of its Service, as pods do.
type dnsWatch struct {
	address netip.Addr
	name    string // the name that is queried
	// own is set if the DNS is part of this node. Another cluster may have none, and does not let a node read its pods.
	own bool
	// serving waits until the address of the Service can be reached and the API server is ready, and returns a client.
	serving func(context.Context) (*kubeapi.Client, error)
	resolve func(ctx context.Context, server netip.AddrPort, name string) error
}

// newDNSWatch returns the watch, or nil if the cluster has no DNS that the node knows.
func newDNSWatch(env component.Env, serving func(context.Context) (*kubeapi.Client, error)) *dnsWatch {
	cfg := env.Config
	own := component.EmbeddedControlPlane(cfg)
	address, err := netip.ParseAddr(cfg.Cluster.DNSAddress)
	if err != nil || own && !cfg.ControlPlane.CoreDNS {
		return nil
	}
	return &dnsWatch{
		address: address, name: "kubernetes.default.svc." + cfg.Cluster.Domain, own: own, serving: serving, resolve: resolveName,
	}
}

// Run implements conditionWatch. It queries periodically, and at once when a pod of the DNS changes.
func (w *dnsWatch) Run(ctx context.Context, report conditionReporter) error {
	report.set(status.Condition{Pending: true, Reason: "Starting", Message: "no name was resolved yet"})
	c, err := w.serving(ctx)
	if err != nil {
		return err
	}
	d := &dnsDiagnoser{watch: w, client: c}
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if w.own {
		watching.Go(func() {
			_ = c.WatchLabelledPods(ctx, coredns.Namespace, coredns.Selector, func(pods []*corev1.Pod) {
				d.setPods(pods)
				select {
				case changed <- struct{}{}:
				default: // not yet handled
				}
			})
		})
	}
	h := dnsHistory{began: time.Now()}
	for timeout := dnsFirstTimeout; ; timeout = min(2*timeout, dnsTimeout) {
		err := w.try(ctx, timeout)
		if ctx.Err() != nil {
			return nil
		}
		state, interval := h.add(err, time.Now())
		w.report(ctx, report, d, state, err)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			timeout = dnsFirstTimeout / 2 // doubled before the next query
		case <-time.After(interval):
		}
	}
}

func (w *dnsWatch) try(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return w.resolve(ctx, netip.AddrPortFrom(w.address, dnsPort), w.name)
}

// report publishes the state of the history; err is the error of the last query.
func (w *dnsWatch) report(ctx context.Context, report conditionReporter, d *dnsDiagnoser, state dnsState, err error) {
	var c status.Condition
	switch state {
	case dnsTolerated:
		return
	case dnsWorks:
		c = d.working()
	default:
		limited, cancel := context.WithTimeout(ctx, dnsDiagnosis)
		c = d.cause(limited, err)
		cancel()
		if ctx.Err() != nil {
			return
		}
		c.Pending = state == dnsStarting
		if c.Reason == reasonNoService && !w.own && !d.worked {
			report.remove() // the cluster has no DNS at this address
			return
		}
	}
	report.set(c)
}

// dnsState is the conclusion from the results of the queries.
type dnsState int

const (
	dnsStarting  dnsState = iota // no success yet
	dnsWorks                     // the last query succeeded
	dnsTolerated                 // queries have failed for a moment
	dnsFails
)

// dnsHistory derives the state from the results of the queries.
type dnsHistory struct {
	began     time.Time
	succeeded bool
	failing   time.Time // the first failure after the last success
}

// add adds the result of a query and returns the state and the interval until the next query.
func (h *dnsHistory) add(err error, now time.Time) (dnsState, time.Duration) {
	if err == nil {
		h.succeeded, h.failing = true, time.Time{}
		return dnsWorks, dnsSlow
	}
	if h.failing.IsZero() {
		h.failing = now
	}
	switch {
	case h.succeeded && now.Sub(h.failing) < dnsTolerance:
		return dnsTolerated, dnsFast
	case !h.succeeded && now.Sub(h.began) < dnsPatience:
		return dnsStarting, dnsFast
	}
	return dnsFails, dnsFailing
}
