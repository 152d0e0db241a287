// Command build builds the programs and images of a node: each upstream project in
// the Go module below components/ that pins it, linked with its version, and a
// manifest of the outputs.
//
// It builds only targets that are not up to date. This depends on the content of
// the module's sources, its go.mod and go.sum, the flags and the tools. It runs on
// any Linux host, needs no privileges, and uses the network only through the go
// command, for modules that are not in its cache. It uses only the standard
// library, so that it compiles quickly.
//
// It does not install anything on the host, and rejects a program whose version is
// not the requested one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	stop()
	fmt.Fprintln(os.Stderr, "build: error:", err)
	var h hintedError
	if errors.As(err, &h) && h.hint != "" {
		fmt.Fprintln(os.Stderr, "hint:", h.hint)
	}
	if errors.Is(err, errUsage) {
		os.Exit(2)
	}
	os.Exit(1)
}

var errUsage = errors.New("usage")

func run(ctx context.Context, args []string, w *os.File) error {
	all := plan()
	fs := flag.NewFlagSet("build", flag.ContinueOnError)
	fs.SetOutput(w)
	fs.Usage = func() { usage(w, fs, all) }
	components := fs.String("components", ".", "the `directory` components/; build.sh sets it")
	out := fs.String("out", "", "output `directory`; default: _out next to components/")
	lanes := fs.Int("lanes", 2, "number of targets to build at the same time")
	if err := fs.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if *lanes < 1 {
		return fmt.Errorf("%w: --lanes must be at least 1", errUsage)
	}
	chosen, err := choose(all, fs.Args())
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	componentsDir, err := filepath.Abs(*components)
	if err != nil {
		return err
	}
	outDir := filepath.Join(filepath.Dir(componentsDir), "_out")
	if *out != "" {
		if outDir, err = filepath.Abs(*out); err != nil {
			return err
		}
	}

	report := newProgress(w)
	lockFile, err := lock(outDir, report.tell)
	if err != nil {
		return err
	}
	defer lockFile.Close()
	t, err := detectToolchain()
	if err != nil {
		return err
	}
	b, err := newBuilder(all, componentsDir, outDir, t, report)
	if err != nil {
		return err
	}
	return b.run(ctx, chosen, *lanes)
}

func usage(w io.Writer, fs *flag.FlagSet, all []target) {
	fmt.Fprintln(w, "usage: build.sh [--out DIRECTORY] [--lanes N] [NAME...]")
	fs.PrintDefaults()
	fmt.Fprintln(w, "names (a target, its module or one of its programs):")
	for _, t := range all {
		line := "  " + t.name
		if t.onRequest {
			line += "  (only on request)"
		}
		if len(t.programs) > 1 {
			line += "  " + strings.Join(t.programs, " ")
		}
		fmt.Fprintln(w, line)
	}
}

// hintedError is an error that the user can fix, with a hint how.
type hintedError struct {
	err  error
	hint string
}

func hinted(err error, hint string) error { return hintedError{err, hint} }

func (e hintedError) Error() string { return e.err.Error() }
func (e hintedError) Unwrap() error { return e.err }
