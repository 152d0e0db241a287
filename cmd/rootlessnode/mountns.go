package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/dropin"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
)

// mountStore manages pinned mount namespaces.
type mountStore interface {
	Create(mountns.Spec) (*mountns.Created, error)
	List() ([]mountns.Namespace, error)
	Delete(name string, force bool) error
	Status(name string) (*mountns.Status, error)
	Find(name string) error
	Pin(name string) string
	Exec(mountns.ExecOptions) error
}

// mountCommand holds the flags that the commands below mountns share.
type mountCommand struct {
	*app
	// name is the name of the mount namespace.
	name string
	// propagation and visible are flags of create and drop-in.
	propagation string
	visible     bool
}

func newMountNS(a *app) *cobra.Command {
	m := &mountCommand{app: a}
	cmd := &cobra.Command{
		Use:   "mountns",
		Short: "Hide a rootful node's mounts from its host (requires root)",
		Long: `Manage a mount namespace for the kubelet and the container runtime of a rootful node.
Host mounts propagate into it; mounts of the runtime, the kubelet and the pods are
shared inside it and hidden from the host. It is pinned to a file, and programs enter
it by name.`,
		Example: `  rootlessnode mountns create
  rootlessnode mountns drop-in containerd kubelet
  systemctl restart containerd kubelet
  rootlessnode mountns status`,
		Annotations: map[string]string{allowRoot: "true"},
	}
	cmd.PersistentFlags().StringVar(&m.name, "name", mountns.DefaultName, "`NAME` of the mount namespace")
	cmd.AddCommand(m.newCreate(), m.newExec(), m.newList(), m.newDelete(), m.newStatus(), m.newDropIn(), m.newEnv())
	return cmd
}

// namespace returns the value of --name, which may be before or after the command. explicit is false if it was not given.
func (m *mountCommand) namespace(cmd *cobra.Command) (name string, explicit bool) {
	if f := cmd.Root().PersistentFlags().Lookup("name"); f != nil && f.Changed && !cmd.Flags().Changed("name") {
		return m.app.name, true
	}
	return m.name, cmd.Flags().Changed("name")
}

// named returns a function for cobra's RunE that runs a command for the mount namespace that --name selects.
func (m *mountCommand) named(run func(ctx context.Context, name string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		name, _ := m.namespace(cmd)
		return run(cmd.Context(), name)
	}
}

func (m *mountCommand) propagationFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&m.visible, "visible", false, "make the mounts visible to the host, as --propagation shared")
	cmd.Flags().StringVar(&m.propagation, "propagation", string(mountns.Slave), "propagation from and to the host: slave (from the host only), shared (both ways) or private (none)")
	completeValues(cmd, "propagation", string(mountns.Slave), string(mountns.Shared), string(mountns.Private))
}

func (m *mountCommand) wanted(cmd *cobra.Command) (mountns.Propagation, error) {
	p, err := mountns.ParsePropagation(m.propagation)
	if err == nil && m.visible && cmd.Flags().Changed("propagation") && p != mountns.Shared {
		err = errdefs.Config("--visible and --propagation %s are mutually exclusive", p)
	}
	if m.visible {
		p = mountns.Shared
	}
	return p, err
}

func (m *mountCommand) newCreate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create and pin the mount namespace, or check the existing one",
		Long: `Create a mount namespace and pin it: a slave of the host's, shared inside. An existing
one with the requested propagation is reused; another propagation is an error. The
command shows which guarantees hold. It checks them by reading the propagation of the
mounts, and by mounting on one side and looking on the other.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := m.wanted(cmd)
			if err != nil {
				return err
			}
			name, _ := m.namespace(cmd)
			c, err := m.mounts.Create(mountns.Spec{Name: name, Propagation: p})
			if err == nil {
				m.show(c, renderCreated(c))
			}
			return err
		},
	}
	m.propagationFlags(cmd)
	return m.withOutput(cmd)
}

func (m *mountCommand) newExec() *cobra.Command {
	var o mountns.ExecOptions
	cmd := &cobra.Command{
		Use:   "exec [flags] -- COMMAND [ARG...]",
		Short: "Enter the mount namespace and execute a program",
		Long: `Enter the mount namespace and execute a program in place of this process. The pid,
arguments, environment, working directory, notify socket and listening descriptors are
kept, so that the command can be put before any ExecStart.

Without --name, the namespace of $KUBENSMNT is used if the variable is set, or else
` + mountns.DefaultName + `. If ` + mountns.DefaultName + ` does not exist, the program is executed in the current namespace,
with a note. A namespace that is given by --name or $KUBENSMNT must exist.`,
		Example: `  rootlessnode mountns exec --name ` + mountns.DefaultName + ` -- /usr/bin/kubelet --config /etc/kubelet.yaml
  rootlessnode mountns exec -- crictl ps`,
		Args: arguments(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, explicit := m.namespace(cmd)
			o.Argv = args
			return m.execIn(name, explicit, o)
		},
	}
	cmd.Flags().SetInterspersed(false) // flags after the program's name belong to the program
	cmd.Flags().BoolVar(&o.IgnorePipe, "ignore-sigpipe", false, "start the program with SIGPIPE ignored, as systemd does")
	cmd.Flags().StringVar(&o.Argv0, "argv0", "", "the argv[0] of the program, like @ in systemd's ExecStart")
	return cmd
}

func (m *mountCommand) execIn(name string, explicit bool, o mountns.ExecOptions) error {
	o.Name = name
	if pin := m.env(mountns.EnvPin); !explicit && pin != "" {
		o.Name, o.Pin = "", pin
	} else if !explicit {
		err := m.mounts.Find(name)
		if err != nil && !errors.Is(err, mountns.ErrNotFound) {
			return err
		}
		if err != nil {
			_, _ = fmt.Fprintf(m.err, "note: mount namespace %s not found: executing %s in the current mount namespace\n", name, o.Argv[0])
			o.Name = ""
		}
	}
	return m.mounts.Exec(o)
}

func (m *mountCommand) newList() *cobra.Command {
	return m.withOutput(&cobra.Command{
		Use:   "list",
		Short: "List the pinned mount namespaces",
		RunE: func(*cobra.Command, []string) error {
			all, err := m.mounts.List()
			if err == nil {
				m.show(all, renderNamespaces(all))
			}
			return err
		},
	})
}

func (m *mountCommand) newDelete() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "delete",
		Short: "Delete the pin of the mount namespace",
		Long: `Delete the pin: the namespace ends with its last process. This is refused while
processes run in it, unless --force is given; they then stay in it, separate from
everything that is started later.`,
		RunE: m.named(func(_ context.Context, name string) error { return m.mounts.Delete(name, force) }),
	}
	cmd.Flags().BoolVar(&force, "force", false, "delete the pin even if processes run in it")
	return cmd
}

func (m *mountCommand) newStatus() *cobra.Command {
	return m.withOutput(&cobra.Command{
		Use:   "status",
		Short: "Show the guarantees and the processes of the mount namespace",
		Long: `Show which guarantees hold and which processes run in the mount namespace. If a
kubelet, containerd or CRI-O of this host runs outside of it, it is listed and the exit
code is 4.`,
		RunE: m.named(func(ctx context.Context, name string) error {
			st, err := m.mounts.Status(name)
			if err != nil {
				return err
			}
			o, err := m.dropInOptions(name)
			if err != nil {
				return err
			}
			stale, err := dropin.Stale(ctx, o)
			if err != nil {
				return err
			}
			return showMountStatus(m.app, st, stale)
		}),
	})
}

func (m *mountCommand) newEnv() *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print " + mountns.EnvPin + "=PATH for CRI-O and other programs",
		RunE: m.named(func(_ context.Context, name string) error {
			err := m.mounts.Find(name)
			if err == nil {
				m.printf("%s=%s\n", mountns.EnvPin, m.mounts.Pin(name))
			}
			return err
		}),
	}
}

func (m *mountCommand) dropInOptions(name string) (dropin.Options, error) {
	o := dropin.Options{Name: name, Exe: m.exe, Dir: m.unitDir, Systemctl: m.systemctl, RootOnly: m.rootOnly}
	var err error
	if o.Exe == "" {
		o.Exe, err = ownPath()
	}
	return o, err
}

func (m *mountCommand) newDropIn() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "drop-in UNIT...",
		Short: "Write systemd units that run services in the mount namespace",
		Long: `Write a unit that creates the mount namespace and, for each UNIT, a drop-in that puts
"rootlessnode mountns exec" before the command of the unit, which is not changed
otherwise. The services enter the namespace when they are restarted.`,
		Example: `  rootlessnode mountns drop-in --dry-run containerd kubelet
  rootlessnode mountns drop-in remove`,
		Args: arguments(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := m.wanted(cmd)
			if err != nil {
				return err
			}
			name, _ := m.namespace(cmd)
			if err := mountns.CheckName(name); err != nil {
				return err
			}
			o, err := m.dropInOptions(name)
			if err != nil {
				return err
			}
			switch p {
			case mountns.Slave:
			case mountns.Shared:
				o.CreateArgs = []string{"--visible"}
			default:
				o.CreateArgs = []string{"--propagation", string(p)}
			}
			plan, err := dropin.NewPlan(cmd.Context(), o, args)
			if err != nil {
				return err
			}
			for _, n := range plan.Notes {
				_, _ = fmt.Fprintf(m.err, "note: %s\n", n)
			}
			if dryRun {
				var files []string
				for _, f := range plan.Files {
					files = append(files, fmt.Sprintf("# %s\n%s", f.Path, f.Text))
				}
				m.printf("%s", strings.Join(files, "\n"))
				return nil
			}
			return m.apply(cmd.Context(), plan)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the files instead of writing them")
	m.propagationFlags(cmd)
	cmd.AddCommand(m.newDropInRemove())
	return cmd
}

func (m *mountCommand) apply(ctx context.Context, plan *dropin.Plan) error {
	written, err := plan.Apply(ctx)
	for _, path := range written {
		m.printf("written   %s\n", path)
	}
	if err == nil && len(written) == 0 {
		m.printf("nothing to change\n")
	}
	return err
}

func (m *mountCommand) newDropInRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "remove [UNIT...]",
		Short: "Remove the files that drop-in wrote, for all units or some",
		Long: `Remove the drop-ins of the UNITs, or all drop-ins of the mount namespace. The unit of
the mount namespace is removed with the last drop-in. The services leave the namespace
when they are restarted; then "rootlessnode mountns delete" ends it.`,
		Args: arguments(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, _ := m.namespace(cmd)
			o, err := m.dropInOptions(name)
			if err != nil {
				return err
			}
			removed, err := dropin.Remove(cmd.Context(), o, args)
			for _, path := range removed {
				m.printf("removed   %s\n", path)
			}
			return err
		},
	}
}
