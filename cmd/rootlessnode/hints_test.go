package main

import (
	"errors"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestCommandsForActions(t *testing.T) {
	t.Parallel()
	a := &app{name: "two", exe: "/opt/my bin/rootlessnode", env: func(string) string { return "" }}
	for want, step := range map[string]errdefs.Step{
		"rootlessnode --name two up --data-dir '/a b' --set cni=none --token-file FILE": {
			Action: errdefs.Start, Args: []string{"dataDir=/a b", "cni=none", "tokenFile=FILE"}},
		"rootlessnode up":                                   {Action: errdefs.Start, Node: "default"},
		"rootlessnode --name two logs kubelet":              {Action: errdefs.ShowLogs, Args: []string{"kubelet"}},
		"rootlessnode --name two token create --node=n1":    {Action: errdefs.CreateToken, Args: []string{"node=n1"}},
		"rootlessnode config default":                       {Action: errdefs.ShowConfig},
		"rootlessnode mountns delete --name kubens --force": {Action: errdefs.DeleteMounts, Args: []string{"kubens", "force=true"}},
		"sudo '/opt/my bin/rootlessnode' host enter --user al -- --name two down --delete-data": {
			Action: errdefs.DeleteData, As: "al", Sudo: true},
		"'/opt/my bin/rootlessnode' host setup --user al --lxc-user-nic=br0": {
			Action: errdefs.SetUpHost, Args: []string{"al", "lxc-user-nic=br0"}},
	} {
		assert.Equal(t, a.commandOf(step), want)
	}
	a.env = func(key string) string { return map[string]string{layout.EnvName: "two"}[key] }
	assert.Equal(t, a.commandOf(errdefs.Step{Action: errdefs.Stop}), "rootlessnode down")
	assert.Equal(t, a.commandOf(errdefs.Step{Action: errdefs.Stop, Node: "default"}), "rootlessnode --name default down")
}

// Every action has one command, which exists.
func TestEveryActionHasACommand(t *testing.T) {
	t.Parallel()
	for _, action := range errdefs.Actions() {
		node, host := nodeCommands[action], hostCommands[action]
		assert.Assert(t, (node == "") != (host == ""), action)
		cmd, args, err := newRoot(newCLI(t).app).Find(strings.Fields(node + host))
		assert.NilError(t, err, action)
		assert.NilError(t, cmd.ParseFlags(args), action)
		assert.Assert(t, cmd.Runnable(), action)
	}
}

func TestHintsAreCommands(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.name = "two"
	c.printError(errdefs.WithSteps(errors.New("x"), errdefs.Text("# now:").Do(errdefs.Stop)))
	assert.Equal(t, c.err.String(), "error: x\nhint:\n  # now:\n  rootlessnode --name two down\n")
}
