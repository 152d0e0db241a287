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
	return r.Settings
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
	s := n.settings
	if s != nil {
		kept := s.WithoutKept()
		s = &kept
	}
	return datadir.PutSettings(n.data, s)
}
