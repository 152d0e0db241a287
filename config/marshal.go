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
	var b bytes.Buffer
	if err := marshalStruct(&b, "", reflect.ValueOf(c).Elem()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func marshalStruct(b *bytes.Buffer, indent string, v reflect.Value) error {
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		if omitsEmpty(field) && isEmpty(value) {
			continue
		}
		if value.Kind() == reflect.Struct {
			fmt.Fprintf(b, "%s%s:\n", indent, jsonName(field))
			if err := marshalStruct(b, indent+"  ", value); err != nil {
				return err
			}
			continue
		}
		text, err := yaml.Marshal(map[string]any{jsonName(field): value.Interface()})
		if err != nil {
			return fmt.Errorf("write config field %s: %w", jsonName(field), err)
		}
		for line := range strings.Lines(string(text)) {
			b.WriteString(indent + line)
		}
	}
	return nil
}

func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice:
		return v.Len() == 0
	}
	return v.IsZero()
}
