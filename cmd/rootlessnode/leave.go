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

	"github.com/rootlessnode/rootlessnode/pkg/clusterjoin"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

type leaveFlags struct {
	timeout         time.Duration
	force, keepData bool
}

func newLeave(a *app) *cobra.Command {
	var f leaveFlags
	const patience = 2 * time.Minute
	cmd := &cobra.Command{
		Use:   "drain-and-leave",
		Short: "Take this worker out of its cluster",
		Long: `Take this worker out of its cluster: cordon it and evict its pods, delete its Node
object, stop it, and remove its data. A step that fails ends it, and the error says
what remains to be done. It acts as the node itself, with no other rights.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			return a.leave(ctx, f)
		},
	}
	cmd.Flags().DurationVar(&f.timeout, "timeout", patience, "how long its pods may take to end")
	cmd.Flags().BoolVar(&f.force, "force", false, "evict also pods that nothing starts elsewhere; and leave when the API server cannot be asked")
	cmd.Flags().BoolVar(&f.keepData, "keep-data", false, "remove only its credentials, not images, volumes and logs")
	return cmd
}

func (a *app) leave(ctx context.Context, f leaveFlags) error {
	n, err := a.attached()
	if err != nil {
		return err
	}
	w, err := a.findWorker(ctx, n, f)
	if err != nil {
		return err
	}
	if w.running {
		told, err := a.leaveCluster(ctx, n, w.nodeName, f)
		if err != nil {
			return err
		}
		w.told = told
	}
	end, endErr := clusterjoin.CertificateEnd(n.Data()) // before it is removed
	if err := a.stopNode(ctx, n, 0, w.running, !f.keepData); err != nil {
		return errdefs.WithHint(err, a.command("down --delete-data"))
	}
	if f.keepData {
		if err := forget(n.Data()); err != nil {
			return fmt.Errorf("remove the node's credentials: %w", err)
		}
		a.printf("its credentials are removed; the rest of its data stays in %s\n", n.Data().Dir)
	}
	if endErr == nil {
		a.printf("its certificate cannot be revoked: a copy of it is valid until %s (docs/joining.md, \"Tokens and secrets\")\n",
			end.Local().Format(time.RFC1123))
	}
	if !w.told {
		a.printf("the cluster was not told; an administrator of it deletes what is left there:\n  kubectl delete node %s\n", w.nodeName)
	}
	return nil
}

// worker is who leaves.
type worker struct {
	nodeName string
	running  bool
	// told: the cluster knows.
	told bool
}

// findWorker refuses what is no worker, and a worker that cannot speak for itself unless that is wanted.
func (a *app) findWorker(ctx context.Context, n handle, f leaveFlags) (*worker, error) {
	s, err := n.Status(ctx)
	if err != nil {
		return nil, err
	}
	w := &worker{nodeName: n.Config().NodeName, running: isRunning(s)}
	joins := n.Config().Joins()
	var record clusterjoin.Record
	switch err := layout.ReadJSON(n.Data().JoinRecord(), &record); {
	case err == nil:
		joins = joins || !w.running // the config of a node that does not run is not known
		if record.NodeName != "" {
			w.nodeName = record.NodeName
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read what the node knows of its cluster: %w", err)
	}
	switch {
	case !joins:
		return nil, errdefs.WithHint(errdefs.Class(errdefs.ErrConfig,
			fmt.Errorf("node %q has joined no cluster: it is its own, or was never started", a.name)), a.command("down --delete-data    # removes the node and its cluster"))
	case !w.running && !f.force:
		return nil, errdefs.WithHint(errdefs.Class(errdefs.ErrNotRunning, fmt.Errorf("node %q is not running: it cannot tell the cluster that it leaves", a.name)),
			a.command("up")+"\n"+a.command("drain-and-leave --force    # leaves without telling the cluster"))
	}
	return w, nil
}

// askLimit is how long the API server may take for one answer.
const askLimit = "--request-timeout=15s"

// leaveCluster drains the node and deletes its Node object. told is false where the API server could not be asked, which is an
// error unless forced.
func (a *app) leaveCluster(ctx context.Context, n handle, nodeName string, f leaveFlags) (told bool, err error) {
	kubectl, err := n.ComponentPath("kubectl")
	if err != nil {
		return false, err
	}
	run := func(out io.Writer, args ...string) error {
		return a.execute(ctx, kubectl, append([]string{"--kubeconfig=" + n.Kubeconfig()}, args...), out)
	}
	var found bytes.Buffer
	if err := run(&found, "get", "node", nodeName, "--ignore-not-found", "--output=name", askLimit); err != nil {
		err = fmt.Errorf("ask the API server for Node object %s: %w", nodeName, err)
		if f.force && ctx.Err() == nil {
			_, _ = fmt.Fprintf(a.err, "warning: %v\n", err)
			return false, nil
		}
		return false, errdefs.WithHint(err, a.command("status")+"\n"+a.command("drain-and-leave --force    # leaves without telling the cluster"))
	}
	if strings.TrimSpace(found.String()) == "" {
		a.printf("Node object %s is not in the cluster any more\n", nodeName)
		return true, nil
	}
	began := a.now()
	drain := []string{"drain", nodeName, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=" + f.timeout.String()}
	if f.force {
		drain = append(drain, "--force")
	}
	if err := run(a.err, drain...); err != nil {
		return false, errdefs.WithHint(fmt.Errorf("drain node %s: %w", nodeName, err), strings.Join([]string{
			"# kubectl says above what is in the way; nothing else was done, and the node takes no new pods",
			a.command("drain-and-leave --timeout 10m"), a.command("drain-and-leave --force    # evicts pods too that nothing starts elsewhere"),
			a.command("kubectl uncordon " + nodeName + "    # stays"),
		}, "\n"))
	}
	a.printf("node %s is cordoned and drained (%s)\n", nodeName, seconds(a.now().Sub(began)))
	if err := run(a.err, "delete", "node", nodeName, "--ignore-not-found", "--wait=false", askLimit); err != nil {
		return false, errdefs.WithHint(fmt.Errorf("delete Node object %s: %w", nodeName, err),
			"# as an administrator of the cluster:\nkubectl delete node "+nodeName+"\n# here:\n"+a.command("down --delete-data"))
	}
	a.printf("Node object %s is deleted\n", nodeName)
	return true, nil
}

// forget removes what lets a worker into its cluster. The cluster goes on to take its certificate until that expires, should
// somebody have a copy.
func forget(d layout.Data) error {
	var errs []error
	for _, path := range []string{d.AdminKubeconfig(), d.BootstrapKubeconfig(), d.KubeletPKI(), d.ClusterCA(), d.JoinRecord()} {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// isRunning tells whether something of the node is there to be stopped.
func isRunning(s *status.Status) bool {
	return s.State != status.NodeStopped && s.State != status.NodeFailed || s.ParentPID > 0
}

// outputDelay is how long a program's output is waited for once it has ended.
const outputDelay = time.Second

// executeProgram runs a program to its end. It gets no standard input.
func executeProgram(ctx context.Context, path string, args []string, stdout io.Writer) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = stdout, os.Stderr, outputDelay
	err := cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
