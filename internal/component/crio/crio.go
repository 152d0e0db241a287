// Package crio renders CRI-O for a node in a user namespace, in the format of CRI-O 1.28 and later (crio.conf(5)).
//
// Runs in: child side. It only renders; Ready's check makes one request.
package crio

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/pelletier/go-toml/v2"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Name of the component and of its program.
const Name = "crio"

// Values of component.Env.Snapshotter. The second is also the name of its program.
const (
	storageOverlay       = "overlayfs"
	storageFuseOverlayfs = "fuse-overlayfs"
	storageNative        = "native"
)

// DefaultCgroup is the cgroup in which CRI-O puts containers of pods without a cgroup parent.
const DefaultCgroup = "/crio"

// rootlessEnv makes CRI-O skip settings that need root: device rules, limits without a controller, lower OOM scores,
// AppArmor profiles, gid= of mounts (CRI-O, server/rootless_linux.go).
const rootlessEnv = "_CRIO_ROOTLESS=1"

// Component returns CRI-O's entry in the catalogue. The host provides its programs.
func Component() component.Component {
	return component.Component{
		Name: Name, KeepsChildren: true, Render: Render, Ready: Ready,
		Enabled: func(c *config.NodeConfig) bool { return c.CRI.Runtime == config.RuntimeCRIO },
		Image:   func(c *config.NodeConfig) string { return c.CRIO.PauseImage },
	}
}

// Render returns CRI-O's arguments and the configuration of CRI-O, its storage and its image policy.
func Render(e component.Env) (component.Rendered, error) {
	storage, err := storageFor(e)
	if err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: %w", Name, err)
	}
	if e.CRIO.Crio == "" || e.CRIO.Conmon == "" {
		return component.Rendered{}, fmt.Errorf("render %s: the paths of CRI-O's programs are not set", Name)
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
	env := []string{rootlessEnv}
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
		// An empty drop-in directory, because the host's drop-ins are for the host's own CRI-O.
		Args: []string{"--config", file, "--config-dir", component.RunFile("crio.conf.d")},
		Env:  env,
	}, nil
}

// policyFile is also read by skopeo and podman. anyImage allows all images, as containerd does
// (containers-policy.json(5)). Without a policy CRI-O cannot pull images.
const (
	policyFile = layout.InsideContainersConf + "/policy.json"
	anyImage   = `{"default": [{"type": "insecureAcceptAnything"}]}` + "\n"
)

// Ready returns a check that requests CRI-O's info page over its socket. CRI-O responds when the storage is open and
// CRI is served.
func Ready(component.Env) func(context.Context) error {
	return component.Probe{Unix: layout.InsideCRIOSock, URL: "http://crio/info"}.Check
}
