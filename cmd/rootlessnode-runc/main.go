// Command rootlessnode-runc stands in front of runc on a node to which some cgroup controller was not delegated. It
// takes runc's command line, drops from the container's specification the limits that cannot be set, and becomes runc.
// containerd is told to call it as the runc runtime's BinaryName, and only where something is missing.
//
// Runs in: child. It prints nothing of its own but errors.
package main

import (
	"os"

	"github.com/rootlessnode/rootlessnode/internal/specfilter"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// envConfig overrides the place of the shim's configuration, for tests.
const envConfig = "ROOTLESSNODE_OCI_SHIM"

func main() {
	path := os.Getenv(envConfig)
	if path == "" {
		path = layout.InsideOCIShim
	}
	err := specfilter.Exec(path, os.Args[1:])
	_, _ = os.Stderr.WriteString("rootlessnode-runc: " + err.Error() + "\n")
	os.Exit(1)
}
