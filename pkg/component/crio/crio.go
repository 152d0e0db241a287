// Package crio renders CRI-O for a node in a user namespace, in the format of CRI-O 1.28 and later (crio.conf(5)).
//
// Runs in: child side. It renders; Ready's check makes one request.
package crio

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/pelletier/go-toml/v2"

	"github.com/rootlessnode/rootlessnode/pkg/component"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// Name of the component, and of its program.
const Name = "crio"

// Values of component.Env.Snapshotter, and the program behind the second.
const (
	storageOverlay       = "overlayfs"
	storageFuseOverlayfs = "fuse-overlayfs"
	storageNative        = "native"
)

// DefaultCgroup is where CRI-O puts containers of pods that name no parent.
const DefaultCgroup = "/crio"

// rootless makes CRI-O leave out what no user namespace may set: device rules, limits without a controller, lower OOM
// scores, AppArmor profiles, gid= of mounts (its server/rootless_linux.go).
const rootless = "_CRIO_ROOTLESS=1"

// Render returns CRI-O's configuration, that of its storage and of the images it may pull, and its arguments.
func Render(e component.Env) (component.Rendered, error) {
	storage, err := storageFor(e)
	if err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: %w", Name, err)
	}
	if e.CRIO.Crio == "" || e.CRIO.Conmon == "" {
		return component.Rendered{}, fmt.Errorf("render %s: its programs are not known", Name)
	}
	conf, err := toml.Marshal(configFor(e, storage))
	if err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: encode TOML: %w", Name, err)
	}
	storageConf, err := toml.Marshal(storageConfigFor(storage))
	if err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: encode TOML: %w", Name, err)
	}
	file := component.RunFile("crio.conf")
	env := []string{rootless}
	if conf := e.Config.CRIO.RegistriesConf; conf != "" {
		env = append(env, "CONTAINERS_REGISTRIES_CONF="+conf)
	}
	return component.Rendered{
		Name: Name,
		Dirs: []component.Dir{
			{Path: layout.InsideCRIORoot, Mode: 0o711},
			{Path: layout.InsideCRIORun, Mode: 0o711},
			{Path: layout.InsideStorageRun, Mode: 0o711},
			{Path: layout.InsideContainersConf, Mode: 0o755},
			{Path: layout.InsideCNIConf, Mode: 0o755},
			{Path: layout.InsidePodLogs, Mode: 0o755},
		},
		Files: []component.File{
			{Path: file, Mode: 0o600, Data: conf},
			{Path: filepath.Join(layout.InsideContainersConf, "storage.conf"), Mode: 0o644, Data: storageConf},
			{Path: policyFile, Mode: 0o644, Data: []byte(anyImage)},
		},
		Path: e.CRIO.Crio,
		// No drop-ins: what an administrator has for the host's own CRI-O is not for this one.
		Args: []string{"--config", file, "--config-dir", component.RunFile("crio.conf.d")},
		Env:  env,
	}, nil
}

// policyFile is where skopeo and podman look too; anyImage lets everything be pulled, as containerd does
// (containers-policy.json(5)). Without a policy CRI-O pulls nothing.
const (
	policyFile = layout.InsideContainersConf + "/policy.json"
	anyImage   = `{"default": [{"type": "insecureAcceptAnything"}]}` + "\n"
)

// Ready asks CRI-O who it is, over its socket: it answers once the storage is open and CRI is served.
func Ready(component.Env) func(context.Context) error {
	return component.Probe{Unix: layout.InsideCRIOSock, URL: "http://crio/info"}.Check
}
