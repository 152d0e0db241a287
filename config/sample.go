package config

import (
	_ "embed"
	"strings"
)

//go:embed sample.yaml
var sample string

// Sample returns the commented configuration file that `rootlessnode config default` prints: every field with its meaning and
// default. A field without a default is "#field: example". Load of the file returns Default.
func Sample() []byte { return []byte(sample) }

// FieldDoc is the documentation of one field.
type FieldDoc struct {
	// Path is the path of the field for --set, such as network.mtu.
	Path string
	// Doc is the meaning of the field, one paragraph.
	Doc string
	// Values are all valid values, if there are only few.
	Values []string
}

// Fields returns the documentation of all fields, without groups of fields, in the order of their declaration.
func Fields() []FieldDoc {
	var out []FieldDoc
	var comment []string
	leaves := (&NodeConfig{}).leaves()
	for line := range strings.Lines(sample) {
		text := strings.TrimSpace(line)
		if c, ok := strings.CutPrefix(text, "# "); ok {
			comment = append(comment, c)
			continue
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(text, "#"), ":")
		if path := leaves[len(out)].path; path == name || strings.HasSuffix(path, "."+name) {
			out = append(out, FieldDoc{Path: path, Doc: strings.Join(comment, " "), Values: valuesOf(leaves[len(out)])})
		}
		if comment = nil; len(out) == len(leaves) {
			break
		}
	}
	return out
}

// valuesOf returns all valid values of a field, or nil if there are many.
func valuesOf(l leaf) []string {
	if check, values, _ := strings.Cut(l.tag.Get("check"), " "); check == "oneof" {
		return strings.Fields(values)
	}
	switch l.path {
	case "network.driver":
		return networkDrivers()
	case "ports.driver":
		return portDrivers()
	}
	switch l.value.Interface().(type) {
	case bool:
		return []string{"true", "false"}
	case AutoBool:
		return []string{string(Auto), string(On), string(Off)}
	}
	return nil
}
