package node

import (
	"os"
	"path/filepath"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func xdgDataHome() (string, error) {
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", errdefs.Preflight("find the data dir: %w", err).Hint("set HOME or XDG_DATA_HOME")
	}
	return filepath.Join(home, ".local", "share"), nil
}

// xdgConfigHome returns the directory of the account's configuration, "" if it is not known.
func xdgConfigHome() string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return dir
	}
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		return filepath.Join(home, ".config")
	}
	return ""
}
