package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"

	"k8s.io/klog/v2"
)

// options are the validated command line.
type options struct {
	kubeconfig string
	hostname   string
	// address is where /healthz, /readyz and /metrics are served.
	address             string
	queueID             int
	failOpen            bool
	netfilterBug1766Fix bool
	version             bool
}

// maxQueueID is the highest number of an NFQUEUE.
const maxQueueID = 65535

// parseOptions parses the flags in args. It reports all invalid values together,
// and writes help and flag errors to w.
func parseOptions(args []string, w io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet(program, flag.ContinueOnError)
	fs.SetOutput(w)
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig for the API server")
	fs.StringVar(&o.hostname, "hostname-override", "", "name of this node's Node object")
	fs.StringVar(&o.address, "metrics-bind-address", "127.0.0.1:9080", "address and port to serve /healthz, /readyz and /metrics on")
	fs.IntVar(&o.queueID, "nfqueue-id", 100, "number of the NFQUEUE")
	fs.BoolVar(&o.failOpen, "fail-open", false, "accept packets while this program is not running or is overloaded")
	fs.BoolVar(&o.netfilterBug1766Fix, "netfilter-bug-1766-fix", true, "queue DNS packets before routing; not needed since Linux 6.12")
	fs.BoolVar(&o.version, "version", false, "print the version and exit")
	addLogFlags(fs)

	if err := fs.Parse(args); err != nil {
		return options{}, err
	}
	if fs.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.version {
		return o, nil
	}
	return o, o.validate()
}

// addLogFlags adds those flags of the logging library that are useful if all
// messages go to standard error, as they do by default.
func addLogFlags(fs *flag.FlagSet) {
	var all flag.FlagSet
	klog.InitFlags(&all)
	for _, name := range []string{"v", "vmodule"} {
		f := all.Lookup(name)
		fs.Var(f.Value, f.Name, f.Usage)
	}
}

func (o options) validate() error {
	var errs []error
	if o.kubeconfig == "" {
		errs = append(errs, errors.New("--kubeconfig: must be set"))
	}
	if o.hostname == "" {
		errs = append(errs, errors.New("--hostname-override: must be set"))
	}
	if _, err := netip.ParseAddrPort(o.address); err != nil {
		errs = append(errs, fmt.Errorf("--metrics-bind-address: %q is not an address with a port", o.address))
	}
	// Upstream uses its default if the value is 0.
	if o.queueID < 1 || o.queueID > maxQueueID {
		errs = append(errs, fmt.Errorf("--nfqueue-id: %d is not from 1 to %d", o.queueID, maxQueueID))
	}
	return errors.Join(errs...)
}
