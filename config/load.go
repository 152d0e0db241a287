package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// maxFileSize limits the size of the file that Load reads, in bytes, in case a device or a log is given by mistake.
const maxFileSize = 1 << 20

// Load reads the configuration file at path and merges it into Default. It is strict: unknown fields, duplicate fields, values
// of the wrong type, a second document, and another apiVersion or kind are errors of class errdefs.ErrConfig, which are
// reported together. A field that is null or absent keeps its default; maps are merged key by key, lists are replaced. Load
// does not call Complete or Validate.
func Load(path string) (*NodeConfig, error) {
	b, _, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return LoadBytes(b, path)
}

// LoadBytes is Load for a document in memory. Each error begins with source, such as a path or "standard input".
func LoadBytes(b []byte, source string) (*NodeConfig, error) {
	c := Default()
	if err := c.merge(b); err != nil {
		return nil, errdefs.Config("%w", prefixEach(source, err)).
			With(errdefs.Do(errdefs.ShowConfig).Note("prints every field with its meaning and default"))
	}
	return c, nil
}

func (c *NodeConfig) merge(b []byte) error {
	if n := documents(b); n > 1 {
		return fmt.Errorf("%d YAML documents, expected one", n)
	}
	j, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		return yamlError(err)
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(j, &top); err != nil {
		return errors.New("not a mapping of fields to values")
	}
	var fs faults
	for _, h := range []struct{ field, want string }{{"apiVersion", APIVersion}, {"kind", Kind}} {
		var got string
		if raw, ok := top[h.field]; !ok || string(raw) == "null" {
			fs.add(h.field, "", "missing: add %s: %s", h.field, h.want)
		} else if json.Unmarshal(raw, &got) == nil && got != h.want { // a wrong type is reported below
			fs.add(h.field, "", "unsupported value %q, expected %q", got, h.want)
		}
	}
	decodeStruct(&fs, "", top, reflect.ValueOf(c).Elem())
	return fs.err()
}

// yamlError removes the prefixes of the YAML library's errors. The rest names lines and keys.
func yamlError(err error) error {
	var list []error
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		line = strings.TrimPrefix(strings.TrimPrefix(line, "error converting YAML to JSON: "), "yaml: ")
		if line != "unmarshal errors:" {
			list = append(list, errors.New(line))
		}
	}
	return errors.Join(list...)
}

// decodeStruct decodes the fields of an object into v and reports unknown fields.
func decodeStruct(fs *faults, path string, object map[string]json.RawMessage, v reflect.Value) {
	for _, key := range sortedKeys(object) {
		at := join(path, key)
		f, ok := fieldByName(v, key)
		if !ok {
			fs.add(at, "", "unknown field%s", didYouMean(path, key, v.Type()))
			continue
		}
		decodeField(fs, at, object[key], f)
	}
}

func decodeField(fs *faults, at string, raw json.RawMessage, f reflect.Value) {
	if string(raw) == "null" {
		return
	}
	if isGroup(f.Type()) || isGroups(f.Type()) {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(raw, &object); err != nil {
			fs.add(at, "", "must be a mapping of fields, got %s", raw)
			return
		}
		if isGroup(f.Type()) {
			decodeStruct(fs, at, object, f)
		} else {
			decodeGroups(fs, at, object, f)
		}
		return
	}
	if err := json.Unmarshal(raw, f.Addr().Interface()); err != nil { // entries are added to a map
		fs.add(at, "", "%s", leafError(raw, f.Type(), err))
	}
}

// isGroup reports whether t is a group of fields, and isGroups whether it is a map to groups of fields.
func isGroup(t reflect.Type) bool  { return t.Kind() == reflect.Struct }
func isGroups(t reflect.Type) bool { return t.Kind() == reflect.Map && isGroup(t.Elem()) }

// decodeGroups replaces entries of a map to groups of fields.
func decodeGroups(fs *faults, path string, object map[string]json.RawMessage, m reflect.Value) {
	if m.IsNil() {
		m.Set(reflect.MakeMap(m.Type()))
	}
	for _, key := range sortedKeys(object) {
		entry := reflect.New(m.Type().Elem()).Elem()
		decodeField(fs, join(path, key), object[key], entry)
		m.SetMapIndex(reflect.ValueOf(key), entry)
	}
}

func leafError(raw json.RawMessage, t reflect.Type, err error) string {
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("must be %s, got %s", typeName(t), raw)
	}
	return err.Error()
}

func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string (quote it if it looks like a number or a boolean)"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Int {
			return "a list of whole numbers"
		}
		return "a list of strings"
	case reflect.Map:
		switch t.Elem().Kind() {
		case reflect.String:
			return "a mapping to strings (quote numbers)"
		case reflect.Bool:
			return "a mapping to true or false"
		}
		return "a mapping"
	}
	return t.String()
}

// documents returns the number of YAML documents that contain more than comments. Every line that begins with "---" starts a
// document (YAML 1.1, 4.3).
func documents(b []byte) int {
	n, content := 0, false
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\r\n")
		rest, marked := strings.CutPrefix(line, "---")
		if marked && (rest == "" || rest[0] == ' ' || rest[0] == '\t') {
			content, line = false, rest
		}
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == '%' || line == "..." || content {
			continue
		}
		content = true
		n++
	}
	return n
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
