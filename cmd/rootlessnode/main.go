// Command rootlessnode runs a Kubernetes node as an ordinary user.
//
// It is a thin coat over pkg/node: it reads flags, shows what happens and turns errors into text and exit codes. It is
// the only reader of the arguments and, besides node.Dispatch, the only caller of os.Exit. See docs/cli.md.
package main

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/node"
)

func main() {
	node.Dispatch()
	if argv, env, hide := hideToken(os.Args, os.Environ()); hide {
		_ = unix.Exec("/proc/self/exe", argv, env) // if it cannot be hidden, it is used all the same
	}
	os.Exit(run(newApp(), os.Args[1:]))
}
