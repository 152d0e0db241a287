package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// userKubeconfig is the kubeconfig of the account, in which a node has a context.
type userKubeconfig interface {
	Merge() (context, path string, err error)
	Unmerge() (changed []string, err error)
}

var _ userKubeconfig = (*node.UserKubeconfig)(nil)

type kubeconfigNode interface {
	handle
	Kubeconfig() string
}

func newKubeconfig(a *app) *cobra.Command {
	var path, merge, unmerge bool
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the administrator's kubeconfig",
		Long: `Print the administrator's kubeconfig for use on this host, or its path with --path:
export KUBECONFIG="$(rootlessnode kubeconfig --path)"

With --merge, add the context rootlessnode-NAME to the kubeconfig that kubectl uses
(KUBECONFIG, or ~/.kube/config), as "rootlessnode up" does. --unmerge removes it from
there.

A worker of another cluster has no administrator's kubeconfig: the node's kubeconfig
is printed instead, which has few permissions.`,
		RunE: withNode(a, func(_ context.Context, n kubeconfigNode, _ []string) error {
			switch {
			case path && merge, path && unmerge, merge && unmerge:
				return errdefs.Config("kubeconfig: use only one of --path, --merge and --unmerge")
			case merge:
				return mergeKubeconfig(a, a.userKubeconfig(n))
			case unmerge:
				return unmergeKubeconfig(a, a.userKubeconfig(n))
			}
			b, err := os.ReadFile(n.Kubeconfig())
			if err != nil {
				return a.noKubeconfig(err)
			}
			if path {
				b = []byte(n.Kubeconfig() + "\n")
			}
			_, err = a.out.Write(b)
			return err
		}),
	}
	cmd.Flags().BoolVar(&path, "path", false, "print the path instead of the contents")
	cmd.Flags().BoolVar(&merge, "merge", false, "add the node's context to the kubeconfig that kubectl uses")
	cmd.Flags().BoolVar(&unmerge, "unmerge", false, "remove the node's context from the kubeconfig files to which it was added")
	return cmd
}

func (a *app) noKubeconfig(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		err = errdefs.NotRunning("node %q was never started: it has no kubeconfig", a.name)
		return errdefs.WithHint(err, a.command("up"))
	}
	return fmt.Errorf("read kubeconfig: %w", err)
}

func mergeKubeconfig(a *app, k userKubeconfig) error {
	name, path, err := k.Merge()
	switch {
	case err != nil:
		return err
	case path == "":
		a.printf("kubectl uses only kubeconfig files of nodes (KUBECONFIG), which are not changed\n")
	default:
		a.printf("context %s is in %s\n", name, path)
	}
	return nil
}

func unmergeKubeconfig(a *app, k userKubeconfig) error {
	changed, err := k.Unmerge()
	for _, path := range changed {
		a.printf("removed the context of node %q from %s\n", a.name, path)
	}
	if len(changed) == 0 && err == nil {
		a.printf("no kubeconfig has a context of node %q\n", a.name)
	}
	return err
}

// mergesAtStart reports whether a start merges the node's kubeconfig. A worker has no administrator's kubeconfig.
func mergesAtStart(n handle) bool { return n.Config().KubeconfigMerge && !n.Config().Joins() }

// mergeAfterStart merges the kubeconfig of a node that has started, unless its configuration forbids that. It returns the name of
// the context and the path of the kubeconfig, or prints a warning, because the node can be used without it.
func mergeAfterStart(a *app, n handle, k userKubeconfig) (name, path string) {
	if !mergesAtStart(n) {
		return "", ""
	}
	name, path, err := k.Merge()
	if err != nil {
		a.warn(err)
		return "", ""
	}
	return name, path
}

// warn prints an error as a warning, with its hints.
func (a *app) warn(err error) {
	r := a.reportOf(err)
	first, rest, _ := strings.Cut(r.Message, "\n")
	_, _ = io.WriteString(a.err, sanitize("warning: "+first+"\n"+rest+renderHints(r.Hints)))
}

// mergePoll is the interval at which mergeInBackground looks for the node in this process, which is about to start.
const mergePoll = 200 * time.Millisecond

// mergeInBackground merges the kubeconfig once the node that this process runs is Ready, until stop is called.
func mergeInBackground(ctx context.Context, a *app, n starter) (stop func()) {
	if !mergesAtStart(n) {
		return func() {}
	}
	k := a.userKubeconfig(n) // now, because the node changes the environment of this process
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			if err := n.WaitFor(ctx, status.MilestoneNode, func(status.Status) {}); err == nil {
				mergeAfterStart(a, n, k)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(mergePoll):
			}
		}
	})
	return func() { cancel(); done.Wait() }
}

// unmergeAfterDelete removes the context of a node whose data was deleted. An error is a warning.
func unmergeAfterDelete(a *app, k userKubeconfig) {
	changed, err := k.Unmerge()
	for _, path := range changed {
		a.printf("removed the context of the node from %s\n", path)
	}
	if err != nil {
		a.warn(err)
	}
}
