package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/mountverify"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

// verifyFlags are the flags of mounts verify.
type verifyFlags struct {
	kubeconfig, node, image, program, dir string
	hostVisible                           bool
	limit                                 time.Duration
}

type verifiable interface {
	handle
	Kubeconfig() string
}

var _ verifiable = (*node.Node)(nil)

func newMountsVerify(a *app) *cobra.Command {
	var f verifyFlags
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Test with pods which mount guarantees hold",
		Long: `Test with pods which mount guarantees hold, on this node or, with --kubeconfig, on any
other node, rootless or rootful:

  1  host mounts propagate to the kubelet and to HostToContainer volumes
  2  the kubelet and Bidirectional volumes see each other's mounts, and
     HostToContainer volumes see both
  3  the host sees those mounts too

Four privileged pods mount over one directory and look for each other's mounts. If only
root could mount on the host, 1 is derived from the propagation of the mounts. The pods
and mounts are removed afterwards.

The exit code is 0 if 1 and 2 hold (and 3 with --host-visible), and 4 if one of them
does not. The pods run this program from the node's disk.`,
		Example: `  rootlessnode mounts verify
  rootlessnode mounts verify --kubeconfig admin.conf --image registry.example/any --host-visible`,
		Annotations: map[string]string{allowRoot: "true"}, // on a rootful node
		RunE:        func(cmd *cobra.Command, _ []string) error { return verifyMounts(cmd.Context(), a, f) },
	}
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` of the cluster of another node")
	cmd.Flags().StringVar(&f.node, "node", "", "name of the Node object (default: the only one)")
	cmd.Flags().StringVar(&f.image, "image", "", "any image that the node has or can pull; no program of it is run (default: the node's pause image)")
	cmd.Flags().StringVar(&f.program, "program", "", "path of this program on the node (default: its path on this host)")
	cmd.Flags().StringVar(&f.dir, "dir", "", "create the directory to mount over in `DIR`, on this host and on the node (default: the directory for temporary files)")
	cmd.Flags().BoolVar(&f.hostVisible, "host-visible", false, "also require guarantee 3")
	cmd.Flags().DurationVar(&f.limit, "timeout", 2*time.Minute, "how long the pods may take")
	return a.withOutput(cmd)
}

func verifyMounts(ctx context.Context, a *app, f verifyFlags) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP) // remove the pods and mounts
	defer stop()
	o, err := verifyOptions(a, &f)
	if err != nil {
		return err
	}
	client, err := kubeapi.New(f.kubeconfig, kubeapi.Options{AsRoot: a.uid == 0})
	if err != nil {
		return errdefs.Class(errdefs.ErrConfig, err)
	}
	defer client.Close()
	o.API = client
	if a.output == "" {
		o.Started = func(node, ns string) {
			_, _ = fmt.Fprintf(a.err, "testing node %s, in namespace %s\n", sanitize(node), sanitize(ns))
		}
	}
	v, err := mountverify.Run(ctx, o)
	if v == nil {
		return fmt.Errorf("verify mounts: %w", err)
	}
	a.show(v, sanitize(renderVerdict(v)))
	return errors.Join(err, guaranteeError(v, f))
}

// verifyOptions returns the options of the test. Flags that were not given default to the running node's values.
func verifyOptions(a *app, f *verifyFlags) (mountverify.Options, error) {
	o := mountverify.Options{
		Node: f.node, Image: f.image, Program: f.program, Dir: f.dir, Limit: f.limit, CanMount: a.uid == 0 && !a.inUserNS(),
		Args: []string{"mounts", "agent"},
	}
	if o.Program == "" {
		var err error
		if o.Program, err = ownPath(); err != nil {
			return o, err
		}
	}
	if f.kubeconfig != "" {
		if f.image == "" {
			return o, errdefs.Config("--kubeconfig needs --image").
				Hint("--image IMAGE, any that the node has: kubectl get nodes -o jsonpath='{.items[*].status.images[*].names[0]}'")
		}
		return o, nil
	}
	if a.uid == 0 {
		return o, errdefs.Config("as root, --kubeconfig is required").Hint("--kubeconfig FILE")
	}
	n, err := attached[verifiable](a)
	if err != nil {
		return o, err
	}
	f.kubeconfig = n.Kubeconfig()
	if _, err := os.Stat(f.kubeconfig); err != nil {
		return o, a.noKubeconfig(err)
	}
	if o.Node == "" {
		o.Node = n.Config().NodeName
	}
	if o.Image == "" {
		o.Image = runtime.Of(n.Config()).PauseImage() // every pod sandbox uses it
	}
	return o, nil
}

// guaranteeError returns an error if a required guarantee does not hold or mounts leaked.
func guaranteeError(v *mountverify.Verdict, f verifyFlags) error {
	var missing []string
	g := v.Guarantees
	for _, want := range []struct {
		number string
		broken bool
	}{{"1", !g.HostToInside}, {"2", !g.Inside}, {"3", f.hostVisible && !g.InsideToHost}} {
		if want.broken {
			missing = append(missing, want.number)
		}
	}
	var errs []error
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("mount guarantees not met: %s", strings.Join(missing, ", ")))
	}
	for _, l := range v.Leaks {
		errs = append(errs, errors.New(l))
	}
	return errdefs.WithHint(errdefs.Class(errdefs.ErrComponent, errors.Join(errs...)), v.Hint)
}

func renderVerdict(v *mountverify.Verdict) string {
	head := []string{"MOUNTED BY"}
	for _, p := range mountverify.Parties() {
		head = append(head, "SEEN BY "+strings.ToUpper(p))
	}
	rows := [][]string{head}
	for _, r := range v.Rows {
		row := []string{r.Mount}
		for _, p := range mountverify.Parties() {
			row = append(row, string(r.SeeIt[p]))
		}
		rows = append(rows, row)
	}
	lines := []string{table(rows) + "\n" + v.Text()}
	lines = append(lines, v.Reasons...)
	for _, n := range v.Notes {
		lines = append(lines, "note: "+n)
	}
	return strings.Join(lines, "\n") + "\n"
}

func newMountsAgent(a *app) *cobra.Command {
	var o mountverify.AgentOptions
	var report string
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "agent", Hidden: true, Short: "Run in a pod of mounts verify", Annotations: map[string]string{allowRoot: "true"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			r, err := mountverify.RunAgent(ctx, o)
			return errors.Join(err, mountverify.Report(report, r, err))
		},
	}
	cmd.Flags().StringVar(&o.Party, "party", "", "")
	cmd.Flags().StringVar(&o.Volume, "volume", "", "")
	cmd.Flags().StringVar(&o.Dir, "dir", "", "")
	cmd.Flags().BoolVar(&o.CallerMounts, "caller-mounts", false, "")
	cmd.Flags().DurationVar(&limit, "limit", 0, "")
	cmd.Flags().StringVar(&report, "report", "", "")
	return cmd
}
