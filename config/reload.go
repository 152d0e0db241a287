package config

import "slices"

// Reloadable reports whether a running node can apply a change of the field at path. Other changes need a new start.
func Reloadable(path string) bool {
	for _, l := range (&NodeConfig{}).leaves() {
		if l.path == path {
			return l.tag.Get("reload") == "yes"
		}
	}
	return false
}

// With returns a copy of c in which the fields at paths have the values of other.
func (c *NodeConfig) With(other *NodeConfig, paths []string) *NodeConfig {
	changed := *c
	values := other.leaves()
	for i, l := range changed.leaves() {
		if slices.Contains(paths, l.path) {
			l.value.Set(values[i].value)
		}
	}
	return &changed
}
