package node

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
)

// Attach returns a handle for the node called name. The handle has the configuration of the running node; if the node is stopped,
// it has the configuration and the data dir of the last start (LastSettings), or the default configuration if they are not known or not
// valid any more. That configuration may be invalid on this host, for example
// because of its host name: Start reports it, and the node can be inspected, stopped and deleted. So can a running node whose file with the
// configuration is damaged, with a warning.
//
// Errors: of class errdefs.ErrConfig if the name is invalid; errdefs.ErrPreflight if the account has no runtime dir.
func Attach(name string, o Options) (*Node, error) {
	if err := config.ValidateName(name); err != nil {
		return nil, err
	}
	if n := attachRunning(name, o); n != nil {
		return n, nil
	}
	cfg, settings := lastConfig(name)
	if o.Settings == nil {
		o.Settings = settings
	}
	n, noRuntimeDir, err := build(cfg, o, false)
	if err == nil {
		err = noRuntimeDir
	}
	if err != nil {
		return nil, err
	}
	return n, nil
}

// attachRunning returns a handle with the configuration that the parent of a running node has written. It returns nil if there is none.
func attachRunning(name string, o Options) *Node {
	base, _ := runtimeDirs()
	rt := layout.NewRuntime(base, name)
	var running config.NodeConfig
	err := layout.ReadJSON(rt.Config(), &running)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) { // not running, or no runtime dir, which build reports
		return nil
	}
	n := newHandle(o)
	if err != nil {
		n.log.WithError(err).Warn("read the running node's config; using the defaults instead")
		return nil
	}
	n.cfg.Store(&running)
	n.rt, n.data = rt, layout.NewData(running.DataDir)
	if n.reg.XDGDataHome, err = xdgDataHome(); err != nil {
		n.log.WithError(err).Warn("the data of the node cannot be deleted")
	}
	return n
}

// runtimeDirs returns the account's runtime directory. If it has none, it returns the reason and the path where it is expected.
func runtimeDirs() (base string, missing error) {
	base, _, missing = preflight.ResolveRuntimeDir(os.Environ(), os.Getuid(), "")
	if missing != nil {
		base = filepath.Join(hostinfo.UserRuntimeDirs, strconv.Itoa(os.Getuid()))
	}
	return base, missing
}
