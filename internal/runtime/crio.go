package runtime

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/containerd"
	"github.com/rootlessnode/rootlessnode/internal/component/crio"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Programs of the host.
const (
	conmon = "conmon"
	skopeo = "skopeo"
)

type crioRuntime struct{ cfg *config.NodeConfig }

func (crioRuntime) Unit() string         { return crio.Name }
func (crioRuntime) Endpoint() string     { return unixScheme + layout.InsideCRIOSock }
func (crioRuntime) Cgroup() string       { return crio.DefaultCgroup }
func (r crioRuntime) PauseImage() string { return r.cfg.CRIO.PauseImage }
func (crioRuntime) RunsBundled() bool    { return true }
func (crioRuntime) HasImageStore() bool  { return false }

func (crioRuntime) Env(component.Storage) []string { return nil }

// ImportCommand writes the archive to CRI-O's storage, because CRI cannot import archives.
func (crioRuntime) ImportCommand(name, archive string) []string {
	return []string{skopeo, "copy", "oci-archive:" + archive, "containers-storage:" + name}
}

func (crioRuntime) WithoutImport() string {
	return "the bundled images are pulled from their registries: CRI-O cannot import archives, and skopeo is not installed"
}

func (crioRuntime) ManualImport() string {
	return skopeo + " copy docker-archive:FILE containers-storage:NAME"
}

func (r crioRuntime) HostNeeds() HostNeeds {
	c := r.cfg.CRIO
	needs := HostNeeds{
		Programs: []string{crio.Name, conmon, "crictl"}, Importer: skopeo,
		Text:    "CRI-O 1.28 or later, conmon and crictl (cri-tools) from your distribution or cri-o.io",
		Version: "1.28", VersionReason: "it reports its cgroup driver to the kubelet", // KEP-4033
		Files: map[string]string{
			"crio.conmon": c.Conmon, "crio.registriesConf": c.RegistriesConf, "crio.signaturePolicy": c.SignaturePolicy,
		},
	}
	if c.Conmon != "" {
		needs.Programs = []string{crio.Name, "crictl"}
	}
	return needs
}

// Detect finds CRI-O and conmon, and chooses the storage driver, as a value of component.Storage.
func (r crioRuntime) Detect() (component.Storage, []string, error) {
	var errs []error
	find := func(name string) string {
		path, err := FindProgram(r.cfg.ComponentsDir, name)
		errs = append(errs, err)
		return path
	}
	storage, warnings, err := r.storage(layout.InsideCRIORoot)
	storage.CRIO = component.CRIOPrograms{Crio: find(crio.Name), Conmon: r.cfg.CRIO.Conmon}
	if storage.CRIO.Conmon == "" {
		storage.CRIO.Conmon = find(conmon)
	}
	storage.CRIO.Pinns, _ = FindProgram(r.cfg.ComponentsDir, "pinns") // CRI-O may find it elsewhere
	return storage, warnings, errdefs.Class(errdefs.ErrPreflight, errors.Join(append(errs, err)...))
}

func (r crioRuntime) storage(dir string) (component.Storage, []string, error) {
	if r.cfg.CRIO.StorageDriver == "vfs" {
		return component.Storage{Snapshotter: containerd.SnapshotterNative}, nil, nil
	}
	err := probeOverlay(dir)
	if err == nil {
		return component.Storage{Snapshotter: containerd.SnapshotterOverlay}, nil, nil
	}
	fuse, fuseErr := FindProgram(r.cfg.ComponentsDir, "fuse-overlayfs")
	if fuseErr == nil {
		fuseErr = unix.Access(fuseDevice, unix.R_OK|unix.W_OK)
	}
	if fuseErr != nil && r.cfg.CRIO.StorageDriver == "overlay" {
		return component.Storage{}, nil, errdefs.Errorf("use crio.storageDriver overlay: %w", errors.Join(err, fuseErr)).
			Hint("apt-get install fuse-overlayfs    # or set crio.storageDriver: auto")
	}
	storage, warnings := withoutOverlay(err, fuse, fuseErr)
	return storage, warnings, nil
}

// FindProgram looks for a program that may not be built with the components: first in the components dir, then on PATH.
func FindProgram(componentsDir, name string) (string, error) {
	if path, err := exec.LookPath(filepath.Join(componentsDir, name)); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find program %s of the container runtime: %w", name, err)
	}
	return filepath.Abs(path)
}
