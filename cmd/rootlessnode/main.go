// Command rootlessnode runs a Kubernetes node as an ordinary user.
//
// It is a thin layer over pkg/node: it parses flags, shows progress and converts errors to text and exit codes. Only this
// package reads the arguments; only it and node.Dispatch call os.Exit. See docs/cli.md.
package main

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/node"
)

func main() {
	node.Dispatch()
	a := newApp()
	if argv, env, hide := hideSecrets(newRoot(a), os.Args, os.Environ()); hide {
		_ = unix.Exec("/proc/self/exe", argv, env) // on failure, use the secret although it is visible
	}
	os.Exit(run(a, os.Args[1:]))
}
