package config

import (
	"path/filepath"
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

// CRI selects the container runtime.
type CRI struct {
	// Runtime is containerd, crio or external.
	Runtime string `json:"runtime"`
	// Endpoint is the socket of an external runtime, "unix://" and an absolute path inside the node.
	Endpoint string `json:"endpoint,omitempty"`
}

// CRIO are the settings for CRI.Runtime RuntimeCRIO. The crio program is searched in ComponentsDir, then on PATH.
type CRIO struct {
	// Conmon is the path of the container monitor. Default: searched like CRI-O itself.
	Conmon string `json:"conmon,omitempty"`
	// StorageDriver is auto (overlay if the kernel or fuse-overlayfs supports it, else vfs), overlay or vfs.
	StorageDriver string `json:"storageDriver"`
	// PauseImage is the sandbox image.
	PauseImage string `json:"pauseImage"`
	// NRI enables the Node Resource Interface, on a socket inside the node.
	NRI bool `json:"nri"`
	// RegistriesConf is the path of a containers-registries.conf(5) on the host.
	RegistriesConf string `json:"registriesConf,omitempty"`
	// SignaturePolicy is the path of a containers-policy.json(5) on the host. Default: all images may be pulled.
	SignaturePolicy string `json:"signaturePolicy,omitempty"`
}

const unixScheme = "unix://"

// RuntimeSocket returns the path, inside the node, of the CRI socket of the node's runtime.
func (c *NodeConfig) RuntimeSocket() string {
	switch c.CRI.Runtime {
	case RuntimeCRIO:
		return layout.InsideCRIOSock
	case RuntimeExternal:
		return strings.TrimPrefix(c.CRI.Endpoint, unixScheme)
	}
	return layout.InsideContainerdSock
}

// RuntimeEndpoint returns RuntimeSocket as a URL for the kubelet and crictl.
func (c *NodeConfig) RuntimeEndpoint() string { return unixScheme + c.RuntimeSocket() }

// PauseImage returns the image of the pod sandboxes.
func (c *NodeConfig) PauseImage() string {
	if c.CRI.Runtime == RuntimeCRIO {
		return c.CRIO.PauseImage
	}
	return c.Containerd.PauseImage
}

func (c *NodeConfig) validateRuntime(fs *faults) {
	oneOf(fs, "cri.runtime", c.CRI.Runtime, RuntimeContainerd, RuntimeCRIO, RuntimeExternal)
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
	c.validateCRIO(fs)
	c.validateUnusedRuntimes(fs)
}

func (c *NodeConfig) validateCRIO(fs *faults) {
	o := c.CRIO
	oneOf(fs, "crio.storageDriver", o.StorageDriver, "auto", "overlay", "vfs")
	image(fs, "crio.pauseImage", o.PauseImage)
	for _, f := range []struct{ field, path string }{
		{"crio.conmon", o.Conmon}, {"crio.registriesConf", o.RegistriesConf}, {"crio.signaturePolicy", o.SignaturePolicy},
	} {
		if f.path == "" {
			continue
		}
		absolute(fs, f.field, f.path)
		// The node has its own directories here, which hide those of the host.
		for _, dir := range []string{layout.InsideContainersConf, "/etc/crio", filepath.Dir(layout.InsideStorageRun), layout.InsideCRIORoot} {
			if f.path == dir || strings.HasPrefix(f.path, dir+"/") {
				fs.add(f.field, "copy the file below your home directory and set the path of the copy", "%s: not visible inside the node, which has its own %s", f.path, dir)
			}
		}
	}
}

// validateUnusedRuntimes rejects settings of a runtime that the node does not use, because they have no effect.
func (c *NodeConfig) validateUnusedRuntimes(fs *faults) {
	d := Default()
	type setting struct {
		field   string
		changed bool
		instead string // with the other runtime
	}
	settings := map[string][]setting{
		RuntimeContainerd: {
			{"containerd.snapshotter", c.Containerd.Snapshotter != d.Containerd.Snapshotter, "crio.storageDriver"},
			{"containerd.pauseImage", c.Containerd.PauseImage != d.Containerd.PauseImage, "crio.pauseImage"},
			{"containerd.nri", c.Containerd.NRI, "crio.nri"},
			{"containerd.registryConfigDir", c.Containerd.RegistryConfigDir != "", "crio.registriesConf"},
		},
		RuntimeCRIO: {
			{"crio.conmon", c.CRIO.Conmon != "", ""},
			{"crio.storageDriver", c.CRIO.StorageDriver != d.CRIO.StorageDriver, "containerd.snapshotter"},
			{"crio.pauseImage", c.CRIO.PauseImage != d.CRIO.PauseImage, "containerd.pauseImage"},
			{"crio.nri", c.CRIO.NRI, "containerd.nri"},
			{"crio.registriesConf", c.CRIO.RegistriesConf != "", "containerd.registryConfigDir"},
			{"crio.signaturePolicy", c.CRIO.SignaturePolicy != "", ""},
		},
	}
	for _, of := range []string{RuntimeContainerd, RuntimeCRIO} {
		for _, s := range settings[of] {
			if of == c.CRI.Runtime || !s.changed {
				continue
			}
			hint := ""
			switch {
			case c.CRI.Runtime == RuntimeExternal:
				hint = "remove " + s.field + ", and configure the external runtime instead"
			case s.instead != "":
				hint = "remove it, and set " + s.instead + " instead"
			}
			fs.add(s.field, hint, "has no effect with cri.runtime %s", c.CRI.Runtime)
		}
	}
}
