package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
	"github.com/rootlessnode/rootlessnode/pkg/mountns/dropin"
)

// mountStore is what the commands need of pinned mount namespaces.
type mountStore interface {
	Create(mountns.Spec) (*mountns.Created, error)
	List() ([]mountns.Namespace, error)
	Delete(name string, force bool) error
	Status(name string) (*mountns.Status, error)
	Find(name string) error
	Pin(name string) string
	Exec(mountns.ExecOptions) error
}

// mountCommand is what the commands below mountns share.
type mountCommand struct {
	*app
	// name is the namespace's.
	name string
	// propagation and visible are those of create.
	propagation string
	visible     bool
}

func newMountNS(a *app) *cobra.Command {
	m := &mountCommand{app: a}
	cmd := &cobra.Command{
		Use:   "mountns",
		Short: "Hide a rootful node's mounts from its host (root's part)",
		Long: `A mount namespace for the kubelet and the container runtime of a rootful node:
host mounts come in, what runtime, kubelet and pods mount is shared inside, and
the host does not see it. It is pinned to a file, and programs enter it by name.`,
		Example: `  rootlessnode mountns create
  rootlessnode mountns drop-in containerd kubelet
  systemctl restart containerd kubelet
  rootlessnode mountns status`,
		Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&m.name, "name", mountns.DefaultName, "the mount namespace's `NAME`")
	cmd.AddCommand(m.newCreate(), m.newExec(), m.newList(), m.newDelete(), m.newStatus(), m.newDropIn(), m.newEnv())
	var allow func(*cobra.Command)
	allow = func(c *cobra.Command) {
		c.Annotations = map[string]string{allowRoot: ""}
		for _, sub := range c.Commands() {
			allow(sub)
		}
	}
	allow(cmd)
	return cmd
}

// namespace is the one that --name picks, before or behind the command, and whether it was named at all.
func (m *mountCommand) namespace(cmd *cobra.Command) (name string, explicit bool) {
	if f := cmd.Root().PersistentFlags().Lookup("name"); f != nil && f.Changed && !cmd.Flags().Changed("name") {
		return m.app.name, true
	}
	return m.name, cmd.Flags().Changed("name")
}

func (m *mountCommand) propagationFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&m.visible, "visible", false, "let the host see the mounts: --propagation shared")
	cmd.Flags().StringVar(&m.propagation, "propagation", string(mountns.Slave), "with the host: slave (host mounts come in), shared (both ways) or private (neither)")
	_ = cmd.RegisterFlagCompletionFunc("propagation", cobra.FixedCompletions( // the flag is there
		[]string{string(mountns.Slave), string(mountns.Shared), string(mountns.Private)}, cobra.ShellCompDirectiveNoFileComp))
}

func (m *mountCommand) wanted(cmd *cobra.Command) (mountns.Propagation, error) {
	p, err := mountns.ParsePropagation(m.propagation)
	if err == nil && m.visible && cmd.Flags().Changed("propagation") && p != mountns.Shared {
		err = errdefs.Class(errdefs.ErrConfig, fmt.Errorf("--visible and --propagation %s exclude each other", p))
	}
	if m.visible {
		p = mountns.Shared
	}
	return p, err
}

func (m *mountCommand) newCreate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make and pin the mount namespace, or check the one that is there",
		Long: `Make a mount namespace and pin it: a slave of the host's, shared inside. One that
is there and is as asked for is used again; one that is otherwise is an error.
Which guarantees hold is found out by reading the mounts' propagation and by
mounting on one side and looking on the other.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := m.wanted(cmd)
			if err != nil {
				return err
			}
			name, _ := m.namespace(cmd)
			c, err := m.mounts.Create(mountns.Spec{Name: name, Propagation: p})
			if err != nil {
				return err
			}
			m.showCreated(c)
			return nil
		},
	}
	m.propagationFlags(cmd)
	m.outputFlag(cmd)
	return cmd
}

func (m *mountCommand) newExec() *cobra.Command {
	var o mountns.ExecOptions
	cmd := &cobra.Command{
		Use:   "exec [flags] -- COMMAND [ARG...]",
		Short: "Enter the mount namespace and execute a program in this one's place",
		Long: `Enter the mount namespace and execute a program in this one's place: pid,
arguments, environment, working directory, notify socket and listening
descriptors stay, so that it can stand before any ExecStart.

Without --name it is $KUBENSMNT's, and else ` + mountns.DefaultName + `, if that is there; if not, the
program is executed where it is, with a note. A namespace that was named and is
not there is an error.`,
		Example: `  rootlessnode mountns exec --name ` + mountns.DefaultName + ` -- /usr/bin/kubelet --config /etc/kubelet.yaml
  rootlessnode mountns exec -- crictl ps`,
		Args: arguments(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, explicit := m.namespace(cmd)
			o.Argv = args
			return m.execIn(name, explicit, o)
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows the program's name is the program's
	cmd.Flags().BoolVar(&o.IgnorePipe, "ignore-sigpipe", false, "start it with SIGPIPE ignored, as systemd does")
	cmd.Flags().StringVar(&o.Argv0, "argv0", "", "what the program is told that it is called, as systemd's @ does")
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
			_, _ = fmt.Fprintf(m.err, "note: mount namespace %s does not exist: %s is executed where it is\n", name, o.Argv[0])
			o.Name = ""
		}
	}
	return m.mounts.Exec(o)
}

func (m *mountCommand) newList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the pinned mount namespaces",
		Args:  arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			all, err := m.mounts.List()
			if err != nil {
				return err
			}
			m.showNamespaces(all)
			return nil
		},
	}
	m.outputFlag(cmd)
	return cmd
}

func (m *mountCommand) newDelete() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "delete",
		Short: "Take the mount namespace's pin away",
		Long: `Take the pin away: the namespace ends with its last process. That is refused while
processes live in it, unless forced; then they stay in it, apart from all that
is started later.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			name, _ := m.namespace(cmd)
			return m.mounts.Delete(name, force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "even while processes live in it")
	return cmd
}

func (m *mountCommand) newStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which guarantees hold, who is in the mount namespace and who should be",
		Long: `Show which guarantees hold and which processes live in the mount namespace. A
kubelet, containerd or CRI-O of this host that does not is named, and the exit
code is 4.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			name, _ := m.namespace(cmd)
			st, err := m.mounts.Status(name)
			if err != nil {
				return err
			}
			o, err := m.dropInOptions(name)
			if err != nil {
				return err
			}
			stale, err := dropin.Stale(cmd.Context(), o)
			if err != nil {
				return err
			}
			return m.showMountStatus(st, stale)
		},
	}
	m.outputFlag(cmd)
	return cmd
}

func (m *mountCommand) newEnv() *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print " + mountns.EnvPin + "=PATH, which CRI-O and others read",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			name, _ := m.namespace(cmd)
			if err := m.mounts.Find(name); err != nil {
				return err
			}
			m.printf("%s=%s\n", mountns.EnvPin, m.mounts.Pin(name))
			return nil
		},
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
		Long: `Write a unit that makes the mount namespace and, for each UNIT, a drop-in that
puts "rootlessnode mountns exec" before its command, which stays word for word
as systemd has it. The services move in when they are restarted.`,
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
			return m.dropIn(cmd.Context(), o, args, dryRun)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the files instead of writing them")
	m.propagationFlags(cmd)
	cmd.AddCommand(m.newDropInRemove())
	return cmd
}

func (m *mountCommand) dropIn(ctx context.Context, o dropin.Options, units []string, dryRun bool) error {
	plan, err := dropin.NewPlan(ctx, o, units)
	if err != nil {
		return err
	}
	for _, n := range plan.Notes {
		_, _ = fmt.Fprintf(m.err, "note: %s\n", n)
	}
	if dryRun {
		for i, f := range plan.Files {
			if i > 0 {
				m.printf("\n")
			}
			m.printf("# %s\n%s", f.Path, f.Text)
		}
		return nil
	}
	written, err := plan.Apply(ctx)
	for _, path := range written {
		m.printf("written   %s\n", path)
	}
	if err == nil && len(written) == 0 {
		m.printf("all is there already\n")
	}
	return err
}

func (m *mountCommand) newDropInRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "remove [UNIT...]",
		Short: "Take back what drop-in wrote, for all units or some",
		Long: `Take back what drop-in wrote: the drop-ins of the UNITs, or all of the mount
namespace's, and its own unit with the last of them. The services move out when
they are restarted; then "rootlessnode mountns delete" ends the namespace.`,
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
