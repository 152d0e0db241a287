package config

import (
	"path/filepath"
	"reflect"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Runtimes that CRI.Runtime can name.
const (
	RuntimeContainerd = "containerd"
	RuntimeCRIO       = "crio"
	// RuntimeExternal is a runtime that the user runs inside the node.
	RuntimeExternal = "external"
)

// DefaultOCIRuntime is the name of the OCI runtime of pods without a RuntimeClass.
const DefaultOCIRuntime = "runc"

// CRI selects the container runtime.
type CRI struct {
	// containerd; crio, CRI-O 1.28 or later, which must be installed on the host; or external, a runtime that you run inside the
	// node.
	Runtime string `json:"runtime" default:"containerd" check:"oneof containerd crio external"`
	// The socket of an external runtime, as a path inside the node. The kubelet waits for it.
	Endpoint string `json:"endpoint,omitempty" example:"unix:///run/my-runtime/cri.sock"`
}

// CRIO are the settings for CRI.Runtime RuntimeCRIO. The crio program is searched in ComponentsDir, then on PATH.
type CRIO struct {
	// The path of the program conmon. Default: searched in componentsDir, then on PATH.
	Conmon string `json:"conmon,omitempty" example:"/usr/libexec/crio/conmon" check:"path"`
	// auto (overlay if the kernel or fuse-overlayfs supports it, else vfs), overlay or vfs.
	StorageDriver string `json:"storageDriver" default:"auto" check:"oneof auto overlay vfs" instead:"containerd.snapshotter"`
	// The image of the pod sandboxes. If skopeo is installed, it is loaded from the images that are shipped with the components.
	PauseImage string `json:"pauseImage" default:"registry.k8s.io/pause:3.10.2" check:"image" instead:"containerd.pauseImage"`
	// Enables the Node Resource Interface, on a socket inside the node.
	NRI bool `json:"nri" default:"false" instead:"containerd.nri" reload:"yes"`
	// The path of a registries.conf on the host (mirrors, registries for short names). It must not be below /etc/containers,
	// because the node has its own directory there.
	RegistriesConf string `json:"registriesConf,omitempty" example:"/home/user/.config/containers/registries.conf" check:"path" instead:"containerd.registryConfigDir"`
	// The path of a policy.json on the host that limits which images may be pulled. Default: all.
	SignaturePolicy string `json:"signaturePolicy,omitempty" example:"/home/user/.config/containers/policy.json" check:"path"`
}

const unixScheme = "unix://"

func validateRuntime(c *NodeConfig, fs *faults) {
	path, isUnix := strings.CutPrefix(c.CRI.Endpoint, unixScheme)
	switch external := c.CRI.Runtime == RuntimeExternal; {
	case external && c.CRI.Endpoint == "":
		fs.add("cri.endpoint", "endpoint: unix:///run/my-runtime/cri.sock", "required with cri.runtime external")
	case !external && c.CRI.Endpoint != "":
		fs.add("cri.endpoint", "cri.runtime: external    # or remove cri.endpoint", "supported only with cri.runtime external, not with %s", c.CRI.Runtime)
	case external && (!isUnix || !isAbsolute(path)):
		fs.add("cri.endpoint", "", "%q: must be unix:// followed by the absolute path of a socket inside the node", c.CRI.Endpoint)
	case external && len(path) > layout.SocketPathMax:
		fs.add("cri.endpoint", "", "the path of the socket has %d bytes, the maximum is %d", len(path), layout.SocketPathMax)
	}
	for _, name := range sortedKeys(c.Containerd.Runtimes) {
		switch at, program := "containerd.runtimes."+name, c.Containerd.Runtimes[name]; {
		case name == DefaultOCIRuntime:
			fs.add(at, "", "is the runtime of the components, which cannot be replaced: choose another name")
		case !isDNSLabel(name):
			fs.add(at, "", "the name must have lower case letters, digits and hyphens, and begin and end with a letter or digit")
		case !isAbsolute(program):
			fs.add(at, "", "%q: must be an absolute path without . or .. elements or a trailing slash", program)
		}
	}
	validateCRIO(c, fs)
	validateUnusedRuntimes(c, fs)
}

func validateCRIO(c *NodeConfig, fs *faults) {
	o := c.CRIO
	for _, f := range []struct{ field, path string }{
		{"crio.conmon", o.Conmon}, {"crio.registriesConf", o.RegistriesConf}, {"crio.signaturePolicy", o.SignaturePolicy},
	} {
		// The node has its own directories here, which hide those of the host.
		for _, dir := range []string{layout.InsideContainersConf, "/etc/crio", filepath.Dir(layout.InsideStorageRun), layout.InsideCRIORoot} {
			if f.path == dir || strings.HasPrefix(f.path, dir+"/") {
				fs.add(f.field, "copy the file below your home directory and set the path of the copy", "%s: not visible inside the node, which has its own %s", f.path, dir)
			}
		}
	}
}

// validateUnusedRuntimes rejects settings of a runtime that the node does not use, because they have no effect.
func validateUnusedRuntimes(c *NodeConfig, fs *faults) {
	defaults := Default().leaves()
	for i, l := range c.leaves() {
		of, _, _ := strings.Cut(l.path, ".")
		if of != RuntimeContainerd && of != RuntimeCRIO || of == c.CRI.Runtime || reflect.DeepEqual(l.value.Interface(), defaults[i].value.Interface()) {
			continue
		}
		hint := ""
		switch instead, ok := l.tag.Lookup("instead"); {
		case c.CRI.Runtime == RuntimeExternal:
			hint = "remove " + l.path + ", and configure the external runtime instead"
		case ok:
			hint = "remove it, and set " + instead + " instead"
		}
		fs.add(l.path, hint, "has no effect with cri.runtime %s", c.CRI.Runtime)
	}
}
