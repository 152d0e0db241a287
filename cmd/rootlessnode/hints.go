package main

import (
	"cmp"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// nodeCommands and hostCommands are the commands for the actions of hints: for those of a node, and for the others. ARG is the
// action's first argument.
var (
	nodeCommands = map[errdefs.Action]string{
		errdefs.Start: "up", errdefs.Stop: "down", errdefs.DeleteData: "down --delete-data", errdefs.ShowStatus: "status",
		errdefs.ShowLogs: "logs ARG", errdefs.CheckHost: "check", errdefs.ListForwards: "ports", errdefs.AddForward: "ports add ARG",
		errdefs.RemoveForward: "ports remove ARG", errdefs.ListTokens: "token list", errdefs.CreateToken: "token create",
		errdefs.VerifyMounts: "mounts verify", errdefs.Kubectl: "kubectl", errdefs.MergeKubeconfig: "kubeconfig --merge",
		errdefs.RestoreSnapshot: "snapshot restore ARG", errdefs.DeleteSnapshot: "snapshot delete ARG",
	}
	hostCommands = map[errdefs.Action]string{
		errdefs.ShowConfig: "config default", errdefs.SetUpHost: "host setup --user ARG", errdefs.CreateAccount: "host setup --user ARG --create-user",
		errdefs.UndoHost:     "host undo --user ARG",
		errdefs.CreateMounts: "mountns create --name ARG", errdefs.DeleteMounts: "mountns delete --name ARG",
		errdefs.ConfigureMounts: "mountns drop-in --name ARG",
	}
)

// startFlags are the flags of up for settings. Other fields are set with --set.
var startFlags = map[string]string{
	"dataDir": "--data-dir", "nodeIP": "--node-ip", "join.server": "--join", "join.caCertHashes": "--ca-cert-hash",
	"join.bootstrapKubeconfig": "--bootstrap-kubeconfig", errdefs.TokenFile: "--token-file",
}

// commandOf returns the command line for an action. An action of another node or account names it, and a command for root has the
// path of this program, because rootlessnode may not be in root's PATH.
func (a *app) commandOf(s errdefs.Step) string {
	program, name, rest := "rootlessnode", "", hostCommands[s.Action]
	if s.As != "" || strings.HasPrefix(rest, "host ") {
		program = hostinfo.Quote(cmp.Or(s.Program, a.exe, program))
	} else if s.Program != "" {
		program = hostinfo.Quote(s.Program)
	}
	if s.Sudo {
		program = "sudo " + program
	}
	if s.As != "" {
		program += " host enter --user " + hostinfo.Quote(s.As) + " --"
	}
	if command, ok := nodeCommands[s.Action]; ok {
		name, rest = a.nameOption(cmp.Or(s.Node, a.name)), command
	}
	args := s.Args
	if strings.Contains(rest, "ARG") && len(args) > 0 {
		rest, args = strings.Replace(rest, "ARG", hostinfo.Quote(args[0]), 1), args[1:]
	}
	words := []string{program + name, rest}
	for _, arg := range args {
		field, value, isOption := strings.Cut(arg, "=")
		switch flag := startFlags[field]; {
		case !isOption:
			words = append(words, hostinfo.Quote(arg))
		case s.Action != errdefs.Start && value == "true":
			words = append(words, "--"+field)
		case s.Action != errdefs.Start:
			words = append(words, "--"+field+"="+hostinfo.Quote(value))
		case flag != "":
			words = append(words, flag, hostinfo.Quote(value))
		default:
			words = append(words, "--set", hostinfo.Quote(arg))
		}
	}
	return strings.Join(words, " ")
}

// nameOption returns the option that selects the node, or "" if commands select it without the option.
func (a *app) nameOption(name string) string {
	if name == cmp.Or(a.env(layout.EnvName), config.DefaultName) || name == "" {
		return ""
	}
	return " --name " + hostinfo.Quote(name)
}

// command returns the command line that runs rootlessnode with the arguments in rest for this node, for summaries and for hints
// that only this program has.
func (a *app) command(rest string) string { return "rootlessnode" + a.nameOption(a.name) + " " + rest }

// reportOf returns the report of err, in which hints are commands.
func (a *app) reportOf(err error) *errdefs.Report {
	r := errdefs.ReportOf(err)
	if r != nil {
		r.Render(a.commandOf)
	}
	return r
}
