package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"

	"k8s.io/klog/v2"
)

// options are the validated command line.
type options struct {
	kubeSubnetMgr        bool
	kubeconfigFile       string
	kubeAPIURL           string
	kubeAnnotationPrefix string

	iface         stringList
	ifaceRegex    stringList
	ifaceCanReach string
	publicIP      string
	publicIPv6    string

	netConfigPath string
	subnetFile    string

	ipMasq               bool
	iptablesResync       int
	iptablesForwardRules bool

	setNodeNetworkUnavailable bool

	healthzIP   string
	healthzPort int

	version bool
}

// stringList is a flag that can be used several times.
type stringList []string

func (l *stringList) String() string     { return strings.Join(*l, ",") }
func (l *stringList) Set(v string) error { *l = append(*l, v); return nil }

// parseOptions parses the flags in args. It reports all invalid values together,
// and writes help and flag errors to w.
func parseOptions(args []string, w io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("flanneld", flag.ContinueOnError)
	fs.SetOutput(w)
	fs.BoolVar(&o.kubeSubnetMgr, "kube-subnet-mgr", true, "use leases in the Kubernetes API; must be true")
	fs.StringVar(&o.kubeconfigFile, "kubeconfig-file", "", "kubeconfig for the API server")
	fs.StringVar(&o.kubeAPIURL, "kube-api-url", "", "URL of the API server; overrides the kubeconfig")
	fs.StringVar(&o.kubeAnnotationPrefix, "kube-annotation-prefix", "flannel.alpha.coreos.com", "prefix of the annotations on the Node object")
	fs.Var(&o.iface, "iface", "name or address of the interface to other nodes; if set several times, the first that exists")
	fs.Var(&o.ifaceRegex, "iface-regex", "like --iface, with a regular expression; tried after --iface")
	fs.StringVar(&o.ifaceCanReach, "iface-can-reach", "", "use the interface that routes to this address; tried last")
	fs.StringVar(&o.publicIP, "public-ip", "", "IPv4 address at which other nodes reach this node")
	fs.StringVar(&o.publicIPv6, "public-ipv6", "", "IPv6 address at which other nodes reach this node")
	fs.StringVar(&o.netConfigPath, "net-config-path", "/etc/kube-flannel/net-conf.json", "network configuration")
	fs.StringVar(&o.subnetFile, "subnet-file", "/run/flannel/subnet.env", "file to write the lease to")
	fs.BoolVar(&o.ipMasq, "ip-masq", false, "masquerade traffic that leaves the pod network")
	fs.IntVar(&o.iptablesResync, "iptables-resync", 5, "seconds between checks of the iptables rules")
	fs.BoolVar(&o.iptablesForwardRules, "iptables-forward-rules", true, "accept forwarded traffic of the pod network")
	fs.BoolVar(&o.setNodeNetworkUnavailable, "set-node-network-unavailable", true, "clear the Node's NetworkUnavailable condition once the lease is in use")
	fs.StringVar(&o.healthzIP, "healthz-ip", "0.0.0.0", "address to serve /healthz and /readyz on")
	fs.IntVar(&o.healthzPort, "healthz-port", 0, "port to serve /healthz and /readyz on; 0 for none")
	fs.BoolVar(&o.version, "version", false, "print the version and exit")
	addLogFlags(fs)

	if err := fs.Parse(args); err != nil {
		return options{}, err
	}
	if fs.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
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
	if !o.kubeSubnetMgr {
		errs = append(errs, errors.New("--kube-subnet-mgr=false: leases in etcd are not supported"))
	}
	for _, expr := range o.ifaceRegex {
		if _, err := regexp.Compile(expr); err != nil {
			errs = append(errs, fmt.Errorf("--iface-regex: %w", err))
		}
	}
	addresses := []struct {
		flag, value string
		v4, v6      bool
	}{
		{"--iface-can-reach", o.ifaceCanReach, true, true},
		{"--public-ip", o.publicIP, true, false},
		{"--public-ipv6", o.publicIPv6, false, true},
		{"--healthz-ip", o.healthzIP, true, true},
	}
	for _, a := range addresses {
		if a.value == "" {
			continue
		}
		ip := net.ParseIP(a.value)
		if ip == nil || (ip.To4() != nil && !a.v4) || (ip.To4() == nil && !a.v6) {
			errs = append(errs, fmt.Errorf("%s: %q is not an address of the required family", a.flag, a.value))
		}
	}
	if o.healthzPort < 0 || o.healthzPort > 65535 {
		errs = append(errs, fmt.Errorf("--healthz-port: %d is not a port", o.healthzPort))
	}
	if o.iptablesResync < 1 {
		errs = append(errs, fmt.Errorf("--iptables-resync: %d is not a positive number of seconds", o.iptablesResync))
	}
	if o.subnetFile == "" {
		errs = append(errs, errors.New("--subnet-file: must not be empty"))
	}
	return errors.Join(errs...)
}
