package config

import (
	"path/filepath"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// Runtimes that CRI.Runtime can name.
const (
	RuntimeContainerd = "containerd"
	RuntimeCRIO       = "crio"
	// RuntimeExternal is a runtime that the user runs inside the node.
	RuntimeExternal = "external"
)

// CRI says which program runs the containers.
type CRI struct {
	// Runtime is containerd, crio or external.
	Runtime string `json:"runtime"`
	// Endpoint is the socket of an external runtime, "unix://" and an absolute path inside the node.
	Endpoint string `json:"endpoint,omitempty"`
}

// CRIO settings, of a node whose CRI.Runtime is RuntimeCRIO. Its program is found in ComponentsDir, then on PATH.
type CRIO struct {
	// Conmon is the monitor of containers. Default: found like CRI-O itself.
	Conmon string `json:"conmon,omitempty"`
	// StorageDriver is auto (overlay, through the kernel or fuse-overlayfs, else vfs, by probe), overlay or vfs.
	StorageDriver string `json:"storageDriver"`
	// PauseImage is the sandbox image.
	PauseImage string `json:"pauseImage"`
	// NRI switches the Node Resource Interface on, at a socket of the node's own.
	NRI bool `json:"nri"`
	// RegistriesConf is a containers-registries.conf(5) of the host.
	RegistriesConf string `json:"registriesConf,omitempty"`
	// SignaturePolicy is a containers-policy.json(5) of the host. Default: every image may be pulled.
	SignaturePolicy string `json:"signaturePolicy,omitempty"`
}

const unixScheme = "unix://"

// RuntimeSocket is the path, inside, of the socket on which the node's runtime serves CRI.
func (c *NodeConfig) RuntimeSocket() string {
	switch c.CRI.Runtime {
	case RuntimeCRIO:
		return layout.InsideCRIOSock
	case RuntimeExternal:
		return strings.TrimPrefix(c.CRI.Endpoint, unixScheme)
	}
	return layout.InsideContainerdSock
}

// RuntimeEndpoint is RuntimeSocket as a URL, as the kubelet and crictl take it.
func (c *NodeConfig) RuntimeEndpoint() string { return unixScheme + c.RuntimeSocket() }

// PauseImage is the image that every sandbox needs.
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
		fs.add("cri.endpoint", "endpoint: unix:///run/my-runtime/cri.sock", "missing: with cri.runtime external it says where the runtime listens")
	case !external && c.CRI.Endpoint != "":
		fs.add("cri.endpoint", "cri.runtime: external    # or drop cri.endpoint", "there is one for cri.runtime external alone, not for %s", c.CRI.Runtime)
	case external && (!isUnix || !isAbsolute(path)):
		fs.add("cri.endpoint", "", "%q: want unix:// and the absolute path of a socket inside the node", c.CRI.Endpoint)
	case external && len(path) > layout.SocketPathMax:
		fs.add("cri.endpoint", "", "the path of the socket has %d bytes: the kernel takes %d", len(path), layout.SocketPathMax)
	}
	c.validateCRIO(fs)
	c.validateIdle(fs)
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
		// Real directories inside: what the host has there is not seen.
		for _, dir := range []string{layout.InsideContainersConf, "/etc/crio", filepath.Dir(layout.InsideStorageRun), layout.InsideCRIORoot} {
			if f.path == dir || strings.HasPrefix(f.path, dir+"/") {
				fs.add(f.field, "copy it below your home directory, and name it there", "%s: the node has a %s of its own", f.path, dir)
			}
		}
	}
}

// validateIdle refuses settings of a runtime that is not the node's: they would do nothing.
func (c *NodeConfig) validateIdle(fs *faults) {
	d := Default()
	type setting struct {
		field   string
		changed bool
		instead string // with the other runtime
	}
	idle := map[string][]setting{
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
		for _, s := range idle[of] {
			if of == c.CRI.Runtime || !s.changed {
				continue
			}
			hint := ""
			switch {
			case c.CRI.Runtime == RuntimeExternal:
				hint = "drop " + s.field + ", and configure the external runtime itself"
			case s.instead != "":
				hint = "drop it, and set " + s.instead + " instead"
			}
			fs.add(s.field, hint, "does nothing with cri.runtime %s", c.CRI.Runtime)
		}
	}
}
