package config

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"

	"sigs.k8s.io/yaml"
)

// Marshal returns c as YAML, with the fields in the order of their declaration. LoadBytes reads it back to an equal value.
func Marshal(c *NodeConfig) ([]byte, error) {
	return marshal(c, nil)
}

// MarshalWithOrigins is Marshal with a comment after each field that is not a default.
func MarshalWithOrigins(c *NodeConfig, origins map[string]Origin) ([]byte, error) {
	b, err := marshal(c, origins)
	return append([]byte("# Fields without a comment have their default, or a value that the node chose.\n"), b...), err
}

func marshal(c *NodeConfig, origins map[string]Origin) ([]byte, error) {
	var b bytes.Buffer
	if err := marshalStruct(&b, "", reflect.ValueOf(c).Elem(), origins); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// marshalStruct writes the fields of v, whose path is path.
func marshalStruct(b *bytes.Buffer, path string, v reflect.Value, origins map[string]Origin) error {
	indent := ""
	if path != "" {
		indent = strings.Repeat("  ", strings.Count(path, ".")+1)
	}
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		if omitsEmpty(field) && isEmpty(value) {
			continue
		}
		if value.Kind() == reflect.Struct {
			fmt.Fprintf(b, "%s%s:\n", indent, jsonName(field))
			if err := marshalStruct(b, join(path, jsonName(field)), value, origins); err != nil {
				return err
			}
			continue
		}
		text, err := yaml.Marshal(map[string]any{jsonName(field): value.Interface()})
		if err != nil {
			return fmt.Errorf("write config field %s: %w", jsonName(field), err)
		}
		first, rest, _ := strings.Cut(string(text), "\n")
		b.WriteString(indent + first + comment(origins[join(path, jsonName(field))]) + "\n")
		for line := range strings.Lines(rest) {
			b.WriteString(indent + line)
		}
	}
	return nil
}

// comment returns the comment about the origin of a field, or "" for a default.
func comment(o Origin) string {
	if o.Kind == "" || o.Kind == OriginDefault {
		return ""
	}
	return "    # " + o.String()
}

func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice:
		return v.Len() == 0
	}
	return v.IsZero()
}
