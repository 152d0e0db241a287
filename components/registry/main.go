// Command local-registry is an OCI registry for the images of one node, on top of the packages of
// CNCF Distribution.
//
// It is a separate program, because upstream's main package links storage drivers for
// clouds, reads a configuration from the environment, and serves every client. This one
// stores images in a directory and serves only clients on the node itself and on the host,
// whose connections the node forwards: pods must not be able to replace each other's
// images. It has no TLS and no login.
//
// With --collect-garbage it removes the blobs that no image uses, and exits. No image must
// be pushed meanwhile.
//
// It exits with 0 after SIGTERM or SIGINT, with 2 for invalid flags, and with 1 and one
// line on standard error for other errors.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sirupsen/logrus"
)

// version is the version of upstream. The build sets it.
var version = "unknown"

const program = "local-registry"

// options are the validated command line.
type options struct {
	// dir is the directory of the images.
	dir string
	// listen are the addresses to listen on, and allow the networks of clients.
	listen []netip.AddrPort
	allow  []netip.Prefix

	level          string
	collectGarbage bool
	version        bool
}

func main() {
	opts, err := parseOptions(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, program+": error:", err)
		os.Exit(2)
	case opts.version:
		fmt.Println(program, version)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process immediately.
	context.AfterFunc(ctx, stop)
	act := serve
	if opts.collectGarbage {
		act = collectGarbage
	}
	if err := act(ctx, opts); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, program+": error:", err)
		os.Exit(1)
	}
}

// parseOptions parses the flags in args. It reports all invalid values together, and writes
// help and flag errors to w.
func parseOptions(args []string, w io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet(program, flag.ContinueOnError)
	fs.SetOutput(w)
	fs.StringVar(&o.dir, "dir", "", "directory of the images")
	fs.Func("listen", "address and port to listen on; may be repeated", func(s string) error {
		a, err := netip.ParseAddrPort(s)
		o.listen = append(o.listen, a)
		return err
	})
	fs.Func("allow", "network of clients, in addition to loopback; may be repeated", func(s string) error {
		p, err := netip.ParsePrefix(s)
		o.allow = append(o.allow, p)
		return err
	})
	fs.StringVar(&o.level, "log-level", "warning", "debug, info, warning or error")
	fs.BoolVar(&o.collectGarbage, "collect-garbage", false, "remove the blobs that no image uses, and exit")
	fs.BoolVar(&o.version, "version", false, "print the version and exit")
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

func (o options) validate() error {
	var errs []error
	if !filepath.IsAbs(o.dir) || filepath.Clean(o.dir) != o.dir || strings.ContainsAny(o.dir, "\n\r\"\\") {
		errs = append(errs, fmt.Errorf("--dir: %q is not a clean absolute path", o.dir))
	}
	if len(o.listen) == 0 && !o.collectGarbage {
		errs = append(errs, errors.New("--listen: must be set"))
	}
	if _, err := logrus.ParseLevel(o.level); err != nil {
		errs = append(errs, fmt.Errorf("--log-level: %w", err))
	}
	return errors.Join(errs...)
}
