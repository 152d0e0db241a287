// Package runtime is the container runtime of a node behind one interface, with the implementations containerd, CRI-O
// and external. All other packages call it through CRI (package criclient) or with the commands that it returns.
//
// Runs in: child, unless a comment says otherwise.
package runtime

import (
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
)

// Runtime is the container runtime of a node. Only Detect reads the host; the other methods run in either side.
type Runtime interface {
	// Unit returns the name of the unit that is ready when the runtime accepts requests.
	Unit() string
	// Endpoint returns the URL of the CRI socket inside the node, for the kubelet and crictl.
	Endpoint() string
	// Cgroup returns the cgroup in which the runtime puts containers whose pod names no parent cgroup.
	Cgroup() string
	// PauseImage returns the image of the pod sandboxes.
	PauseImage() string
	// Env returns the variables with which the runtime's own clients find it and its storage.
	Env(component.Storage) []string
	// RunsBundled reports whether containers run with the OCI runtime of the components.
	RunsBundled() bool
	// HostNeeds returns what the runtime needs from the host.
	HostNeeds() HostNeeds
	// Detect finds the runtime's programs and chooses the storage of images. It also returns warnings for the user.
	Detect() (component.Storage, []string, error)
	// HasImageStore reports whether the helper program of package criclient can import, name and remove images.
	HasImageStore() bool
	// ImportCommand returns the command line that loads an OCI image archive, for a runtime without an image store. It returns nil if
	// there is no such command.
	ImportCommand(name, archive string) []string
	// WithoutImport returns the consequence of a missing program of ImportCommand, or "" if the node cannot run then.
	WithoutImport() string
	// ManualImport returns a command with which users load an archive if there is no image store.
	ManualImport() string
}

// HostNeeds lists the requirements of a runtime on the host.
type HostNeeds struct {
	// Programs must be next to the components or on PATH. The first one is the runtime itself.
	Programs []string
	// Text is the list of things to install or, without Programs, the reason why nothing is needed.
	Text string
	// Version is the oldest version of the runtime, MAJOR.MINOR, for VersionReason.
	Version, VersionReason string
	// Files are existing files by the setting that names them. Empty paths do not count.
	Files map[string]string
	// Importer is the program of ImportCommand.
	Importer string
}

// Of returns the runtime of a node with the configuration c, which must be valid. Runs in: either side.
func Of(c *config.NodeConfig) Runtime {
	switch c.CRI.Runtime {
	case config.RuntimeCRIO:
		return crioRuntime{c}
	case config.RuntimeExternal:
		return external{c}
	}
	return containerdRuntime{c}
}

// OCIProgram is the program of the components that runs containers for containerd and CRI-O.
const OCIProgram = "runc"

const unixScheme = "unix://"

// Socket returns the path of the runtime's CRI socket inside the node.
func Socket(c *config.NodeConfig) string { return strings.TrimPrefix(Of(c).Endpoint(), unixScheme) }

// ClientEnv returns the environment in which crictl and the runtime's own clients find it.
func ClientEnv(r Runtime, s component.Storage) []string {
	return append(r.Env(s), "CONTAINER_RUNTIME_ENDPOINT="+r.Endpoint(), "IMAGE_SERVICE_ENDPOINT="+r.Endpoint())
}
