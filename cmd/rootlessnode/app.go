package main

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostsetup"
	"github.com/rootlessnode/rootlessnode/internal/userns"
	"github.com/rootlessnode/rootlessnode/internal/userunit"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

// handle is a node. Each command asserts the part of node.Node that it uses, see attached.
type handle interface {
	Config() *config.NodeConfig
}

// app is one execution of the command line, with its inputs and its access to the system.
type app struct {
	// name is --name.
	name string
	// joinToken is the bootstrap token from the environment. tokenTaken is true if an earlier execution of this program, which
	// has read all sources, passed it on.
	joinToken  string
	tokenTaken bool
	// output is the value of -o: "" or "json".
	output string

	stdin, stdout, stderr *os.File
	// out and err are stdout and stderr, except in tests.
	out, err io.Writer
	env      func(string) string
	unsetenv func(string)
	uid      int
	inUserNS func() bool
	now      func() time.Time
	// newNode and attach return the node's handle.
	newNode func(*config.NodeConfig, node.Options) (handle, error)
	attach  func(string, node.Options) (handle, error)
	// lastSettings returns the settings of the last start of a node in a data dir, or nil. See node.LastSettings.
	lastSettings func(name, dataDir string) *config.Settings
	// requested returns the config with which a node in a data dir was started, or nil. See node.RequestedConfig.
	requested func(name, dataDir string) *config.NodeConfig
	// newWarnings returns the warnings that an earlier start of the node has not shown. See node.NewWarnings.
	newWarnings func(n handle, warnings []string) ([]string, error)
	// beginStop starts the stop of a node with a time limit for its pods. See node.BeginStop.
	beginStop func(ctx context.Context, n handle, podLimit time.Duration) error
	// reload and restart change a running node. See node.Reload and node.RestartComponent.
	reload  func(ctx context.Context, n handle, o node.ReloadOptions) ([]string, error)
	restart func(ctx context.Context, n handle, component string) error
	// names returns the names of the account's nodes.
	names func() ([]string, error)
	// userKubeconfig returns the kubeconfig of the account for a node.
	userKubeconfig func(handle) userKubeconfig
	// replace executes another program in place of this process.
	replace func(path string, argv, env []string) error
	// execute runs another program and waits for it; its standard error is that of this process.
	execute func(ctx context.Context, path string, args []string, stdout io.Writer) error
	// userSystemctl runs systemctl --user.
	userSystemctl func(ctx context.Context, args ...string) (string, error)
	// enter runs a program as an account (host enter).
	enter func(hostsetup.EnterOptions) (int, error)
	// exe is the path of this program, without symbolic links. Empty: unknown.
	exe string
	// mounts are the mount namespaces of a rootful node. unitDir, rootOnly and systemctl are for its units; defaults are used for
	// those that are empty.
	mounts    mountStore
	unitDir   string
	rootOnly  func(path string) error
	systemctl func(ctx context.Context, args ...string) ([]byte, error)
}

func newApp() *app {
	exe, _ := ownPath() // without it, hints use the program's name
	return &app{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, out: os.Stdout, err: os.Stderr,
		env: os.Getenv, unsetenv: func(k string) { _ = os.Unsetenv(k) }, uid: os.Geteuid(), inUserNS: userns.Inside, now: time.Now,
		newNode:        func(c *config.NodeConfig, o node.Options) (handle, error) { return orNil(node.New(c, o)) },
		attach:         func(name string, o node.Options) (handle, error) { return orNil(node.Attach(name, o)) },
		userKubeconfig: func(n handle) userKubeconfig { return node.NewUserKubeconfig(n.(*node.Node)) },
		lastSettings:   node.LastSettings, names: node.Names, requested: node.RequestedConfig,
		newWarnings: func(n handle, w []string) ([]string, error) { return node.NewWarnings(n.(*node.Node), w) },
		beginStop: func(ctx context.Context, n handle, limit time.Duration) error {
			return node.BeginStop(ctx, n.(*node.Node), limit)
		},
		reload: func(ctx context.Context, n handle, o node.ReloadOptions) ([]string, error) {
			return node.Reload(ctx, n.(*node.Node), o)
		},
		restart: func(ctx context.Context, n handle, name string) error {
			return node.RestartComponent(ctx, n.(*node.Node), name)
		},

		replace: replaceProcess, execute: executeProgram, userSystemctl: userunit.Systemctl,
		enter: hostsetup.Enter, mounts: mountns.New(mountns.Options{}), exe: exe,
	}
}

// orNil returns a nil handle with an error; otherwise a nil *node.Node would become a non-nil handle.
func orNil(n *node.Node, err error) (handle, error) {
	if err != nil {
		return nil, err
	}
	return n, nil
}

// attached returns the node that --name selects, as the part N of node.Node that the command uses.
func attached[N any](a *app) (N, error) {
	n, err := a.attach(a.name, node.Options{Log: a.logger()})
	if err != nil {
		var none N
		return none, err
	}
	return n.(N), nil
}

// withNode returns a function for cobra's RunE that runs a command for the node that --name selects.
func withNode[N any](a *app, run func(ctx context.Context, n N, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		n, err := attached[N](a)
		if err != nil {
			return err
		}
		return run(cmd.Context(), n, args)
	}
}

// logger returns a logger that writes warnings to standard error, one per line.
func (a *app) logger() logrus.FieldLogger {
	return &logrus.Logger{Out: a.err, Formatter: plainFormatter{}, Hooks: logrus.LevelHooks{}, Level: logrus.WarnLevel}
}

// plainFormatter writes "warning: text (key: value)".
type plainFormatter struct{}

func (plainFormatter) Format(e *logrus.Entry) ([]byte, error) {
	line := e.Level.String() + ": " + e.Message
	if check, ok := e.Data["check"].(string); ok {
		line += " (" + check + ")"
	}
	if err, ok := e.Data[logrus.ErrorKey].(error); ok {
		line += ": " + err.Error()
	}
	return append([]byte(line), '\n'), nil
}

func isTerminal(f *os.File) bool { return f != nil && term.IsTerminal(int(f.Fd())) }
