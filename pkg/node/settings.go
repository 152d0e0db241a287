package node

import (
	"errors"
	"os"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// LastSettings returns what Options.Settings was at the last start of the node called name, or nil if that is not known. dataDir is
// its data dir; if it is empty, it is that of the last start. Errors of the data are not reported here but by New.
func LastSettings(name, dataDir string) *config.Settings {
	if r := record(name, dataDir); r != nil {
		return r.Settings
	}
	return nil
}

// RequestedConfig returns the config that the settings of the last start resulted in, with the changes by Reload, and without the defaults
// that depend on the host. It returns nil if that is not known. dataDir is as for LastSettings.
func RequestedConfig(name, dataDir string) *config.NodeConfig {
	r := record(name, dataDir)
	if r == nil || r.Requested == "" {
		return nil
	}
	cfg, err := config.LoadBytes([]byte(r.Requested), "requested config")
	if err != nil {
		return nil // written by another version
	}
	return cfg
}

// record returns the record of a node's data dir, or nil.
func record(name, dataDir string) *datadir.Record {
	if dataDir == "" {
		_, data, _, err := Locate(name)
		if err != nil {
			return nil
		}
		dataDir = data.Dir
	}
	r, err := datadir.ReadRecord(layout.NewData(dataDir), os.Getuid())
	if err != nil || r.Name != name || r.Deleting {
		return nil
	}
	return r
}

// lastConfig returns the configuration of the last start, or the default configuration if it is not known or not valid any more, so
// that the node can be inspected and its data deleted. settings is nil in that case.
func lastConfig(name string) (cfg *config.NodeConfig, settings *config.Settings) {
	if settings = LastSettings(name, ""); settings != nil {
		again := *settings
		err := again.Reread()
		if cfg, berr := again.Build(name); errors.Join(err, berr) == nil {
			return cfg, &again
		}
	}
	cfg = config.Default()
	cfg.Name = name
	return cfg, nil
}

// recordSettings keeps the settings of this start with the data.
func recordSettings(n *Node) error {
	if n.settings == nil {
		return datadir.PutSettings(n.data, nil, "")
	}
	cfg, err := n.settings.Build(n.Config().Name)
	if err != nil {
		return err
	}
	return putSettings(n, *n.settings, cfg)
}

// putSettings keeps settings and the config that they resulted in with the data.
func putSettings(n *Node, s config.Settings, requested *config.NodeConfig) error {
	text, err := config.Marshal(requested)
	if err != nil {
		return err
	}
	kept := s.WithoutKept()
	return datadir.PutSettings(n.data, &kept, string(text))
}
