package main

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func newList(a *app) *cobra.Command {
	return a.withOutput(&cobra.Command{
		Use:   "list",
		Short: "List the nodes of this account",
		Long: `List the nodes of this account: those that are running and those that have data. A node
whose state cannot be determined is listed with the reason.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			names, err := a.names()
			if err != nil {
				return err
			}
			nodes := listNodes(cmd.Context(), a, names)
			if len(nodes) == 0 {
				a.show(nodes, "this account has no nodes\n")
				return nil
			}
			a.show(nodes, renderList(nodes, a.now(), a.styleOf(a.stdout)))
			return nil
		},
	})
}

// stateUnknown is the state of a node whose status cannot be read.
const stateUnknown = "unknown"

// listedNode is a node in the output of list.
type listedNode struct {
	Name       string    `json:"name"`
	State      string    `json:"state"`
	Reason     string    `json:"reason,omitempty"`
	Since      time.Time `json:"since,omitzero"`
	NodeName   string    `json:"nodeName,omitempty"`
	Kubernetes string    `json:"kubernetes,omitempty"`
	APIServer  string    `json:"apiServer,omitempty"`
	DataDir    string    `json:"dataDir,omitempty"`
}

// listNodes returns the nodes with these names, in this order. It reads all of them at the same time, because one may not respond.
func listNodes(ctx context.Context, a *app, names []string) []listedNode {
	nodes := make([]listedNode, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { nodes[i] = listNode(ctx, a, name) })
	}
	all.Wait()
	return nodes
}

func listNode(ctx context.Context, a *app, name string) listedNode {
	h, err := a.attach(name, node.Options{Log: a.logger()})
	var s *status.Status
	if err == nil {
		s, err = h.(statusNode).Status(ctx)
	}
	if err != nil {
		return listedNode{Name: name, State: stateUnknown, Reason: err.Error()}
	}
	return listedNode{
		Name: name, State: string(s.State), Reason: s.Reason, Since: s.Since,
		NodeName: s.NodeName, Kubernetes: s.Kubernetes, APIServer: s.APIServer, DataDir: s.DataDir,
	}
}

func renderList(nodes []listedNode, now time.Time, st style) string {
	rows := [][]string{{"NAME", "STATE", "AGE", "API SERVER", "DATA", "REASON"}}
	for _, n := range nodes {
		since := ""
		if !n.Since.IsZero() {
			since = age(now.Sub(n.Since))
		}
		rows = append(rows, []string{n.Name, n.State, since, n.APIServer, n.DataDir, st.truncate(oneLine(n.Reason), st.width-reasonAt)})
	}
	return table(rows)
}

// stopAll stops all nodes of the account at the same time, and deletes their data if requested.
func stopAll(ctx context.Context, a *app, o stopOptions) error {
	names, err := a.names()
	if err != nil {
		return err
	}
	out, stderr := &lockedWriter{w: a.out}, &lockedWriter{w: a.err}
	results := make([]error, len(names))
	stopped := make([]bool, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			one := *a
			one.name, one.out, one.err = name, out, stderr
			stopped[i], results[i] = stopNamed(ctx, &one, o)
		})
	}
	all.Wait()
	for _, one := range stopped {
		if one {
			return errors.Join(results...)
		}
	}
	a.printf("no node of this account is running\n")
	return errors.Join(results...)
}

// stopNamed stops the node a.name. It does nothing if the node is not running, unless its data has to be deleted, and reports whether it
// did something.
func stopNamed(ctx context.Context, a *app, o stopOptions) (done bool, err error) {
	n, err := attached[stopper](a)
	if err != nil {
		return true, errdefs.Errorf("stop node %q: %w", a.name, err)
	}
	s, err := briefStatus(ctx, n)
	if err != nil {
		return true, errdefs.Errorf("stop node %q: %w", a.name, err)
	}
	if !isRunning(s) && !o.deleteData {
		return false, nil
	}
	return true, stopNode(ctx, a, n, s, o)
}

// lockedWriter is a writer for concurrent use.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
