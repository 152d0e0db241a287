package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/bugreport"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

var _ bugreport.Node = (*node.Node)(nil)

// reportResult is the object that `report -o json` prints.
type reportResult struct {
	File string `json:"file"`
	// Bytes is the size of the file.
	Bytes int `json:"bytes"`
	*bugreport.Summary
}

func newReport(a *app) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Write an archive with diagnostics for a bug report",
		Long: `Write an archive with what a maintainer needs to understand a problem: configuration,
checks, status, events, logs, versions, cgroups, mounts, network, pods' state and facts
about the host. It works for running, stopped, damaged and hanging nodes. Keys, tokens,
passwords and the cluster's Secrets are removed, and only you can read the file. Look
through it before you publish it.`,
		Example: `  rootlessnode report
  rootlessnode report --file /tmp/report.tar.gz`,
		RunE: func(cmd *cobra.Command, _ []string) error { return report(cmd.Context(), a, path) },
	}
	cmd.Flags().StringVar(&path, "file", "", "write the archive to `FILE`, which must not exist; - is standard output (default: rootlessnode-report-NAME-TIME.tar.gz)")
	return a.withOutput(cmd)
}

func report(ctx context.Context, a *app, path string) error {
	in, err := reportInput(a)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	s, err := bugreport.Write(ctx, &b, in)
	if err != nil {
		return err
	}
	if path == "-" {
		_, err := a.out.Write(b.Bytes())
		return err
	}
	if path == "" {
		path = bugreport.Dir(a.name) + in.Now.UTC().Format("-20060102T150405Z") + ".tar.gz"
	}
	var fault *fs.PathError
	switch err := (atomicfile.Options{New: true}).Write(path, b.Bytes(), 0o600); {
	case errors.Is(err, fs.ErrExist):
		return errdefs.Config("write report: %s already exists", path)
	case errors.As(err, &fault):
		err = fault.Err // without the temporary name
		fallthrough
	case err != nil:
		return errdefs.Errorf("write report to %s: %w", path, err).Hint(a.command("report --file " + hostinfo.Quote(os.TempDir()+"/report.tar.gz")))
	}
	a.show(reportResult{path, b.Len(), s}, renderReport(path, b.Len(), s))
	return nil
}

// reportInput returns the subject of the report. A node whose files are damaged is described by its files only.
func reportInput(a *app) (in bugreport.Input, err error) {
	in = bugreport.Input{Name: a.name, Version: node.Version, Env: os.Environ(), Home: a.env("HOME"), Now: a.now()}
	if in.Runtime, in.Data, in.Registry, err = node.Locate(a.name); err != nil {
		return in, err
	}
	n, err := attached[bugreport.Node](a)
	if err != nil {
		in.Fault = err
		return in, nil
	}
	in.Node = n
	if p, ok := n.(interface{ Data() node.DataPaths }); ok { // a running node may have another data dir than the next start
		in.Data = p.Data()
	}
	return in, nil
}

// renderReport returns where the archive is and which parts are incomplete.
func renderReport(path string, size int, s *bugreport.Summary) string {
	var b strings.Builder
	fmt.Fprintf(&b, "wrote %s (%d KiB)\n", path, (size+1023)/1024)
	for _, w := range s.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	for _, p := range s.Parts {
		if p.Error != "" {
			fmt.Fprintf(&b, "incomplete: %s: %s\n", p.Name, strings.ReplaceAll(p.Error, "\n", "; "))
		}
	}
	b.WriteString("Keys, tokens and passwords were removed. Look through the archive before you publish it.\n")
	return b.String()
}
