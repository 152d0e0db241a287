package runtime

import (
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// knownRuntimes returns the OCI runtimes that are used if they are on PATH, with the program of their own shim and its name in containerd. Those
// without one have runc's command line.
func knownRuntimes() map[string]component.OCIRuntime {
	return map[string]component.OCIRuntime{
		"crun": {}, "youki": {}, "runsc": {Shim: "containerd-shim-runsc-v1", ShimType: "io.containerd.runsc.v1"},
	}
}

// DetectOCIRuntimes returns the configured OCI runtimes, and known ones on PATH. It returns an error if a configured one cannot be executed.
func DetectOCIRuntimes(c *config.NodeConfig) (map[string]component.OCIRuntime, error) {
	if c.CRI.Runtime != config.RuntimeContainerd {
		return nil, nil
	}
	found := map[string]component.OCIRuntime{}
	if c.Containerd.DetectRuntimes {
		for name, known := range knownRuntimes() {
			if r, ok := onPath(name, known); ok {
				found[name] = r
			}
		}
	}
	for name, path := range c.Containerd.Runtimes {
		if _, err := exec.LookPath(path); err != nil {
			return nil, errdefs.Preflight("containerd.runtimes.%s: %w", name, err)
		}
		known := knownRuntimes()[filepath.Base(path)]
		if known.Shim != "" {
			shim, err := exec.LookPath(known.Shim)
			if err != nil {
				return nil, errdefs.Preflight("containerd.runtimes.%s: %w", name, fmt.Errorf("find its shim: %w", err))
			}
			known.Shim = shim
		}
		known.Path = path
		found[name] = known
	}
	return found, nil
}

// onPath completes a known runtime with the paths of its programs. ok is false if one of them is missing.
func onPath(name string, r component.OCIRuntime) (_ component.OCIRuntime, ok bool) {
	var err error
	if r.Path, err = exec.LookPath(name); err != nil {
		return r, false
	}
	if r.Shim != "" {
		r.Shim, err = exec.LookPath(r.Shim)
	}
	return r, err == nil && filepath.IsAbs(r.Path)
}
