package config

import (
	_ "embed"
	"slices"
	"strings"
)

//go:embed sample.yaml
var sample []byte

// Sample returns the commented configuration file that `rootlessnode config default` prints: every field with its meaning and
// default. A field without a default is "#field: example". Load of the file returns Default.
func Sample() []byte { return slices.Clone(sample) }

// FieldDoc is the documentation of one field in the sample.
type FieldDoc struct {
	// Path is the path of the field for --set, such as network.mtu.
	Path string
	// Value is the default as YAML, or an example if Optional.
	Value string
	// Optional fields have no fixed default.
	Optional bool
	// Doc is the meaning of the field, one paragraph.
	Doc string
	// Group is true for a group of fields. Value is empty then.
	Group bool
}

// Fields returns the documentation of all fields and groups in the order of the sample.
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

// isMapField reports whether the field at path is a map or list, not a group of fields.
func isMapField(path string) bool {
	return slices.ContainsFunc((&NodeConfig{}).leaves(), func(l leaf) bool { return l.path == path })
}
