package config

import (
	_ "embed"
	"slices"
	"strings"
)

//go:embed sample.yaml
var sample []byte

// Sample returns the commented configuration file that `rootlessnode config default` prints: every field with its
// meaning and its default. A field without one stands as "#field: example". Loading it gives Default.
func Sample() []byte { return slices.Clone(sample) }

// FieldDoc is what the sample says of one field.
type FieldDoc struct {
	// Path is the field's name for --set: network.mtu.
	Path string
	// Value is the default as YAML, or an example if Optional.
	Value string
	// Optional fields have no fixed default.
	Optional bool
	// Doc is the meaning: one paragraph.
	Doc string
	// Group tells that further fields follow below it, and Value is empty.
	Group bool
}

// Fields returns the documentation of every field and group in the order of the sample.
func Fields() []FieldDoc {
	var (
		out     []FieldDoc
		comment []string
		parents []string // by depth
		inner   = -1     // depth of the map or list whose entries are being read
	)
	for line := range strings.Lines(string(sample)) {
		line = strings.TrimRight(line, "\n")
		text := strings.TrimLeft(line, " ")
		depth := (len(line) - len(text)) / 2
		switch {
		case text == "":
			comment = nil
			continue
		case text == "#", strings.HasPrefix(text, "# "):
			comment = append(comment, strings.TrimSpace(text[1:]))
			continue
		case inner >= 0 && depth > inner:
			last := &out[len(out)-1]
			last.Value, last.Group = strings.TrimSpace(last.Value+"\n"+text), false
			continue
		}
		name, optional := strings.CutPrefix(text, "#")
		name, value, _ := strings.Cut(name, ":")
		parents = append(parents[:depth], name)
		value = strings.TrimSpace(value)
		out = append(out, FieldDoc{
			Path: strings.Join(parents, "."), Value: value, Optional: optional,
			Doc: strings.Join(comment, " "), Group: value == "",
		})
		inner, comment = -1, nil
		if isMapField(out[len(out)-1].Path) {
			inner = depth
		}
	}
	return out
}

// isMapField tells fields whose entries are the user's from groups of fields.
func isMapField(path string) bool {
	return slices.ContainsFunc((&NodeConfig{}).leaves(), func(l leaf) bool { return l.path == path })
}
