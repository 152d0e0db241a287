// Command conformance tests a running node with Kubernetes' end-to-end suite:
//
//	conformance build -dir DIR           builds the suite's programs and the archive of its images
//	conformance run -dir DIR -out OUT    runs a set of specs and compares the results with the expectations
//
// It runs on the host. build needs the source tree, the Go toolchain and, on Debian, apt. run needs none of them, so that it can run as
// another account that owns the node.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// exitUsage is the exit code for an invalid command line. The exit code is 1 if a run does not match the expectations.
const exitUsage = 2

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := dispatch(ctx, os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "conformance: error:", err)
		os.Exit(exitUsage)
	case err != nil:
		fmt.Fprintln(os.Stderr, "conformance: error:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("invalid command line")

func dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("%w: build or run is needed", errUsage)
	}
	switch args[0] {
	case "build":
		return build(ctx, args[1:])
	case "run":
		return run(ctx, args[1:])
	default:
		return fmt.Errorf("%w: unknown command %q, build or run is needed", errUsage, args[0])
	}
}

// parse parses flags and rejects other arguments.
func parse(fs *flag.FlagSet, args []string) error {
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("%w: unexpected %q", errUsage, fs.Args())
	}
	return nil
}
