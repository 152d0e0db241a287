package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// manifest lists the components for the node. Paths are relative to its directory,
// so that the tree can be moved.
type manifest struct {
	Schema     int             `json:"schema"`
	Components []manifestEntry `json:"components"`
	Images     []manifestEntry `json:"images"`
}

type manifestEntry struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Path    string `json:"path"`
	SHA256  string `json:"sha256"`
	Size    int64  `json:"size"`
}

// newManifest returns a manifest of all targets of a side that have a stamp, of this
// or an earlier run, sorted by name.
func newManifest(all []target, stamps map[string]stamp, side string) (manifest, error) {
	m := manifest{Schema: 1, Components: []manifestEntry{}, Images: []manifestEntry{}}
	for _, t := range all {
		s, ok := stamps[t.name]
		if !ok || t.side != side {
			continue
		}
		relative, err := filepath.Rel(filepath.Join(bin, side), t.output)
		if err != nil {
			return manifest{}, err
		}
		entry := manifestEntry{Version: s.Version, Path: relative, SHA256: s.SHA256, Size: s.Size}
		if t.image != "" {
			entry.Name = expand(t.image, s.Version)
			m.Images = append(m.Images, entry)
		}
		for _, p := range t.programs {
			entry.Name, entry.Version = p, cmp.Or(s.Programs[p], s.Version)
			m.Components = append(m.Components, entry)
		}
	}
	byName := func(a, b manifestEntry) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(m.Components, byName)
	slices.SortFunc(m.Images, byName)
	return m, nil
}

// write writes the manifest to the directory that its paths are relative to.
func (m manifest) write(dir string) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	return writeFile(filepath.Join(dir, "manifest.json"), append(data, '\n'))
}
