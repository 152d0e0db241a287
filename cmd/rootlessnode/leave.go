package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/membership"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

type leaveFlags struct {
	timeout         time.Duration
	force, keepData bool
}

// worker is the part of node.Node for leaving its cluster.
type worker interface {
	stopper
	Data() layout.Data
	Kubeconfig() string
	ComponentPath(name string) (string, error)
}

var _ worker = (*node.Node)(nil)

func newLeave(a *app) *cobra.Command {
	var f leaveFlags
	cmd := &cobra.Command{
		Use:   "drain-and-leave",
		Short: "Remove this worker from its cluster",
		Long: `Remove this worker from its cluster: cordon it and evict its pods, delete its Node
object, stop it, and delete its data. If a step fails, the command stops, and the error
says what remains to be done. It uses the node's own credentials and permissions.`,
		RunE: withNode(a, func(ctx context.Context, n worker, _ []string) error {
			ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			return leave(ctx, a, n, f)
		}),
	}
	cmd.Flags().DurationVar(&f.timeout, "timeout", drainTimeout, "how long the eviction of the pods may take")
	cmd.Flags().BoolVar(&f.force, "force", false, "also evict pods that no controller recreates; leave even if the API server cannot be reached")
	cmd.Flags().BoolVar(&f.keepData, "keep-data", false, "delete only the credentials; keep images, volumes and logs")
	return cmd
}

// drainTimeout is the default of --timeout.
const drainTimeout = 2 * time.Minute

func leave(ctx context.Context, a *app, n worker, f leaveFlags) error {
	w, err := findMember(ctx, a, n, f)
	if err != nil {
		return err
	}
	notified := false // the Node object was deleted, so that the cluster knows
	if isRunning(w.status) {
		if notified, err = leaveCluster(ctx, a, n, w.nodeName, f); err != nil {
			return err
		}
	}
	end, endErr := membership.CertificateEnd(n.Data()) // before the certificate is deleted
	if err := stopNode(ctx, a, n, w.status, stopOptions{deleteData: !f.keepData}); err != nil {
		return errdefs.WithHint(err, a.command("down --delete-data"))
	}
	if f.keepData {
		if err := deleteCredentials(n.Data()); err != nil {
			return fmt.Errorf("delete the node's credentials: %w", err)
		}
		a.printf("deleted the node's credentials; the rest of its data is kept in %s\n", n.Data().Dir)
	}
	if endErr == nil {
		a.printf("the node's certificate cannot be revoked: copies of it are valid until %s (docs/joining.md, \"Tokens and secrets\")\n",
			end.Local().Format(time.RFC1123))
	}
	if !notified {
		a.printf("the cluster was not notified; an administrator of the cluster must delete the Node object:\n  kubectl delete node %s\n", w.nodeName)
	}
	return nil
}

// member is the node as a member of its cluster.
type member struct {
	nodeName string
	status   *status.Status
}

// findMember returns an error if the node is not a worker, or if it is not running and --force was not given.
func findMember(ctx context.Context, a *app, n worker, f leaveFlags) (*member, error) {
	s, err := n.Status(ctx)
	if err != nil {
		return nil, err
	}
	w, running := &member{n.Config().NodeName, s}, isRunning(s)
	joins := n.Config().Joins()
	var record membership.Record
	switch err := layout.ReadJSON(n.Data().JoinRecord(), &record); {
	case err == nil:
		joins = joins || !running // the config of a stopped node is unknown
		if record.NodeName != "" {
			w.nodeName = record.NodeName
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the record of the joined cluster: %w", err)
	}
	switch {
	case !joins:
		return nil, errdefs.Config("node %q has not joined a cluster: it runs its own control plane, or was never started", a.name).
			Hint(a.command("down --delete-data    # deletes the node and its cluster"))
	case !running && !f.force:
		return nil, errdefs.NotRunning("node %q is not running and cannot notify the cluster", a.name).
			Hint(a.command("up") + "\n" + a.command("drain-and-leave --force    # leaves without notifying the cluster"))
	}
	return w, nil
}

// requestTimeout limits the time for one request to the API server.
const requestTimeout = "--request-timeout=15s"

// leaveCluster drains the node and deletes its Node object. notified is false if the API server could not be reached, which
// is an error unless f.force is set.
func leaveCluster(ctx context.Context, a *app, n worker, nodeName string, f leaveFlags) (notified bool, err error) {
	kubectl, err := n.ComponentPath("kubectl")
	if err != nil {
		return false, err
	}
	run := func(out io.Writer, args ...string) error {
		return a.execute(ctx, kubectl, append([]string{"--kubeconfig=" + n.Kubeconfig()}, args...), out)
	}
	var found bytes.Buffer
	if err := run(&found, "get", "node", nodeName, "--ignore-not-found", "--output=name", requestTimeout); err != nil {
		err = fmt.Errorf("get Node object %s from the API server: %w", nodeName, err)
		if f.force && ctx.Err() == nil {
			_, _ = fmt.Fprintf(a.err, "warning: %v\n", err)
			return false, nil
		}
		return false, errdefs.WithHint(err, a.command("status")+"\n"+a.command("drain-and-leave --force    # leaves without notifying the cluster"))
	}
	if strings.TrimSpace(found.String()) == "" {
		a.printf("Node object %s does not exist in the cluster any more\n", nodeName)
		return true, nil
	}
	began := a.now()
	drain := []string{"drain", nodeName, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=" + f.timeout.String()}
	if f.force {
		drain = append(drain, "--force")
	}
	if err := run(a.err, drain...); err != nil {
		return false, errdefs.Errorf("drain node %s: %w", nodeName, err).
			Hint(strings.Join([]string{"# see the output of kubectl above; the node is cordoned, and nothing else was changed", a.command("drain-and-leave --timeout 10m"), a.command("drain-and-leave --force    # also evicts pods that no controller recreates"), a.command("kubectl uncordon " + nodeName + "    # keeps it in the cluster")}, "\n"))
	}
	a.printf("node %s cordoned and drained (%s)\n", nodeName, seconds(a.now().Sub(began)))
	if err := run(a.err, "delete", "node", nodeName, "--ignore-not-found", "--wait=false", requestTimeout); err != nil {
		return false, errdefs.Errorf("delete Node object %s: %w", nodeName, err).
			Hint("# as an administrator of the cluster:\nkubectl delete node " + nodeName + "\n# on this host:\n" + a.command("down --delete-data"))
	}
	a.printf("Node object %s deleted\n", nodeName)
	return true, nil
}

// deleteCredentials deletes the credentials with which a worker accesses its cluster. Copies of its certificate stay valid until
// it expires.
func deleteCredentials(d layout.Data) error {
	var errs []error
	for _, path := range []string{d.AdminKubeconfig(), d.BootstrapKubeconfig(), d.KubeletPKI(), d.ClusterCA(), d.JoinRecord()} {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// isRunning reports whether there are processes of the node to stop.
func isRunning(s *status.Status) bool {
	return s.State != status.NodeStopped && s.State != status.NodeFailed || s.ParentPID > 0
}

// outputDelay is how long to wait for a program's output after it has exited.
const outputDelay = time.Second

// executeProgram runs a program without standard input and waits for it.
func executeProgram(ctx context.Context, path string, args []string, stdout io.Writer) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = stdout, os.Stderr, outputDelay
	err := cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
