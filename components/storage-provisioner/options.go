package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strings"

	"k8s.io/klog/v2"
)

// options are the validated command line.
type options struct {
	kubeconfig string
	// node is the name of this node's Node object. It may change.
	node string
	// label and labelValue are a label of the Node object that does not change. Volumes can
	// be used only by pods on nodes with this label.
	label, labelValue string
	// dir is the directory of the volumes, as the kubelet sees it.
	dir string
	// address is where /readyz and /metrics are served.
	address string
	version bool
}

// parseOptions parses the flags in args. It reports all invalid values together,
// and writes help and flag errors to w.
func parseOptions(args []string, w io.Writer) (options, error) {
	var o options
	var label string
	fs := flag.NewFlagSet(program, flag.ContinueOnError)
	fs.SetOutput(w)
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig for the API server")
	fs.StringVar(&o.node, "node-name", "", "name of this node's Node object")
	fs.StringVar(&label, "node-label", "", "label of the Node object, KEY=VALUE, that volumes require")
	fs.StringVar(&o.dir, "dir", "", "directory of the volumes, as the kubelet sees it")
	fs.StringVar(&o.address, "bind-address", "127.0.0.1:8474", "address and port to serve /readyz and /metrics on")
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
	o.label, o.labelValue, _ = strings.Cut(label, "=")
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
	if o.node == "" {
		errs = append(errs, errors.New("--node-name: must be set"))
	}
	if o.label == "" || o.labelValue == "" {
		errs = append(errs, errors.New("--node-label: must be KEY=VALUE"))
	}
	if !filepath.IsAbs(o.dir) || filepath.Clean(o.dir) != o.dir {
		errs = append(errs, fmt.Errorf("--dir: %q is not a clean absolute path", o.dir))
	}
	if _, err := netip.ParseAddrPort(o.address); err != nil {
		errs = append(errs, fmt.Errorf("--bind-address: %q is not an address with a port", o.address))
	}
	return errors.Join(errs...)
}
