package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostexec"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

type runNode interface {
	handle
	Runtime() layout.Runtime
}

var _ runNode = (*node.Node)(nil)

func newRun(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Run a program of the host in the node's network",
		Long: `Run a program of the host in the network of the node: it reaches pods, Services by
their names and cluster addresses, and the Internet, as a pod does. localhost is that
of the node; host.rootlessnode.internal is the host (network.hostPorts).

Everything else is as without "rootlessnode run": files, user, working directory,
environment, terminal, signals and exit code. Only /etc/resolv.conf, /etc/hosts and
/etc/nsswitch.conf have another content, which no other program sees. The exit code is
127 if the command was not found, 126 if it cannot be executed.`,
		Example: `  rootlessnode run -- curl http://web.default.svc.cluster.local
  rootlessnode run -- psql -h db.default
  rootlessnode run -- bash`,
		Args: arguments(1, -1),
		RunE: withNode(a, func(_ context.Context, n runNode, args []string) error { return runProgram(a, n, args) }),
	}
	cmd.Flags().SetInterspersed(false) // flags after the program's name belong to the program
	return cmd
}

// Names of hidden commands: the second and the third step of run, see package hostexec.
const (
	runPrepare = "run-prepare"
	runExecute = "run-execute"
)

// newRunSteps returns the hidden commands.
func newRunSteps(a *app) []*cobra.Command {
	prepare := &cobra.Command{
		Use: runPrepare + " VIEW COMMAND...", Hidden: true, Args: arguments(2, -1), Annotations: map[string]string{allowRoot: "true"},
		RunE: func(_ *cobra.Command, args []string) error { return a.prepareRun(args[0], args[1:]) },
	}
	execute := &cobra.Command{
		Use: runExecute + " FD COMMAND...", Hidden: true, Args: arguments(2, -1), Annotations: map[string]string{allowRoot: "true"},
		RunE: func(_ *cobra.Command, args []string) error {
			if fd, err := strconv.Atoi(args[0]); err == nil {
				_ = os.NewFile(uintptr(fd), "ids").Close() // it was needed only by nsenter
			}
			return mountns.New(mountns.Options{}).Exec(mountns.ExecOptions{Argv: args[1:]})
		},
	}
	for _, cmd := range []*cobra.Command{prepare, execute} {
		cmd.Flags().SetInterspersed(false)
	}
	return []*cobra.Command{prepare, execute}
}

// runProgram replaces this process by a program in the node's network.
func runProgram(a *app, n runNode, args []string) error {
	var h layout.HandoverInfo
	err := layout.ReadJSON(n.Runtime().Handover(), &h)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !proc.Exists(h.ChildPID) {
		return errdefs.NotRunning("node %q is not running", a.name).Do(errdefs.Start)
	}
	if err != nil {
		return fmt.Errorf("find the node's processes: %w", err)
	}
	view, err := json.Marshal(viewOf(n.Config(), n.Runtime(), hostFile))
	if err != nil {
		return err
	}
	nsenter, err := findNSEnter()
	if err != nil {
		return err
	}
	step := append([]string{a.exe, runPrepare, "--", string(view)}, args...)
	argv := hostexec.EnterNode(nsenter, h.ChildPID, step)
	return a.replace(nsenter, argv, os.Environ())
}

// prepareRun is the second step, as root of the node's user namespace.
func (a *app) prepareRun(text string, args []string) error {
	if a.uid != 0 || !a.inUserNS() {
		return errdefs.Config("%s: only \"rootlessnode run\" executes this command", runPrepare)
	}
	var view hostexec.View
	if err := json.Unmarshal([]byte(text), &view); err != nil {
		return errdefs.Config("%s: %w", runPrepare, err)
	}
	nsenter, err := findNSEnter()
	if err != nil {
		return err
	}
	ids, err := hostexec.Prepare(view)
	if err != nil {
		return fmt.Errorf("run %s: %w", args[0], err)
	}
	step := append([]string{a.exe, runExecute, "--", strconv.Itoa(int(ids.Fd()))}, args...)
	return a.replace(nsenter, hostexec.EnterIDs(nsenter, ids, step), os.Environ())
}

func findNSEnter() (string, error) {
	path, err := exec.LookPath(hostinfo.TapProgram)
	if err != nil {
		path = hostinfo.FindProgram(hostinfo.TapProgram, hostinfo.SbinDirs()...)
	}
	if path == "" {
		return "", errdefs.Preflight("run: %s is not installed", hostinfo.TapProgram).
			Hint(hostinfo.DetectDistro("/").InstallCommand([]string{hostinfo.TapProgram}))
	}
	return path, nil
}

// hostFile returns the content of a file of the host, or "".
func hostFile(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

// viewOf returns the files that a program in the node's network has in place of the host's, whose contents read returns.
func viewOf(cfg *config.NodeConfig, rt layout.Runtime, read func(path string) string) hostexec.View {
	const resolv, hosts, nsswitch = "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"
	return hostexec.View{
		Scratch: rt.Dir,
		Files: []hostexec.File{
			{Path: resolv, Content: hostexec.ResolvConf(cfg.Cluster.DNSAddress, cfg.Cluster.Domain, read(resolv))},
			{Path: hosts, Content: hostexec.Hosts(cfg.Network.HostAddress, config.HostName, read(hosts)), Optional: true},
			{Path: nsswitch, Content: hostexec.NSSwitch(read(nsswitch)), Optional: true},
		},
		Hide: []string{"/run/nscd/socket"}, // nscd resolves names in the host's network
	}
}
