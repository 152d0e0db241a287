// Command rootlessnode-runc wraps runc on a node to which a cgroup controller was not delegated. It takes runc's command
// line, removes the limits that cannot be set from the container's specification, and executes runc. containerd is
// configured to use it as the BinaryName of the runc runtime, only if a controller is missing.
//
// Runs in: child. It prints errors only.
package main

import (
	"os"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/specfilter"
)

// envConfig overrides the path of the shim's configuration, for tests.
const envConfig = "ROOTLESSNODE_OCI_SHIM"

func main() {
	path := os.Getenv(envConfig)
	if path == "" {
		path = layout.InsideOCIShim
	}
	err := specfilter.Exec(path, os.Args)
	_, _ = os.Stderr.WriteString("rootlessnode-runc: " + err.Error() + "\n")
	os.Exit(1)
}
