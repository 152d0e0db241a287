// Package manifest edits streams of Kubernetes objects as data: it decodes them, sets fields and encodes them again, so
// that a value cannot break the YAML around it.
//
// Runs in: either side. Pure.
package manifest

import (
	"bytes"
	"fmt"
	"strconv"

	"sigs.k8s.io/yaml"
)

// Objects are Kubernetes objects in the order in which they are applied.
type Objects []map[string]any

const separator = "---\n"

// Decode parses a stream of YAML documents, separated by lines of three dashes.
func Decode(stream []byte) (Objects, error) {
	var objects Objects
	for i, document := range bytes.Split(stream, []byte("\n"+separator)) {
		var object map[string]any
		if err := yaml.UnmarshalStrict(document, &object); err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		if len(object) > 0 {
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// Encode returns the objects as a stream that Decode can parse.
func (o Objects) Encode() ([]byte, error) {
	var b bytes.Buffer
	for i, object := range o {
		data, err := yaml.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		if i > 0 {
			b.WriteString(separator)
		}
		b.Write(data)
	}
	return b.Bytes(), nil
}

// Set sets the field at path of the object with that kind and name. A number in path is an index of a list, which must
// have that element. A missing last field is created.
func (o Objects) Set(kind, name string, value any, path ...string) error {
	for _, object := range o {
		meta, ok := object["metadata"].(map[string]any)
		if !ok || object["kind"] != kind || meta["name"] != name {
			continue
		}
		if err := set(object, value, path); err != nil {
			return fmt.Errorf("%s %s: %w", kind, name, err)
		}
		return nil
	}
	return fmt.Errorf("%s %s not found", kind, name)
}

func set(in any, value any, path []string) error {
	for ; len(path) > 1; path = path[1:] {
		next, err := step(in, path[0])
		if err != nil {
			return err
		}
		in = next
	}
	fields, ok := in.(map[string]any)
	if !ok {
		return fmt.Errorf("%s: the parent is not an object", path[0])
	}
	fields[path[0]] = value
	return nil
}

func step(in any, name string) (any, error) {
	switch v := in.(type) {
	case map[string]any:
		if next, ok := v[name]; ok {
			return next, nil
		}
	case []any:
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(v) {
			return v[i], nil
		}
	}
	return nil, fmt.Errorf("field %s not found", name)
}
