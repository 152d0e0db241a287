package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Set changes the field at path, such as network.mtu, as `--set PATH=VALUE` does. The value must match the type of the field.
// A list is written a,b,c or [a, b, c] and replaces the old one. The path of a map entry ends with its key, which may contain
// dots, as in kubelet.evictionHard.memory.available. On an invalid path or value, Set returns an error of class
// errdefs.ErrConfig and changes nothing. Set does not call Validate.
func (c *NodeConfig) Set(path, value string) error {
	if err := c.set(path, value); err != nil {
		return errdefs.Config("set %s: %w", path, err)
	}
	return nil
}

func (c *NodeConfig) set(path, value string) error {
	switch path {
	case "apiVersion", "kind":
		return errors.New("cannot be changed")
	case "name":
		return errdefs.Errorf("cannot be set here").Hint("use --name or ROOTLESSNODE_NAME")
	}
	v, seen, rest := reflect.ValueOf(c).Elem(), "", path
	for v.Kind() == reflect.Struct {
		var name string
		name, rest, _ = strings.Cut(rest, ".")
		f, ok := fieldByName(v, name)
		if !ok {
			return fmt.Errorf("unknown field %s%s", join(seen, name), didYouMean(seen, name, v.Type()))
		}
		v, seen = f, join(seen, name)
		if rest == "" {
			break
		}
	}
	switch {
	case v.Kind() == reflect.Struct:
		return errors.New("is a group of fields: specify one of them")
	case v.Kind() == reflect.Map && rest != "":
		return setMapEntry(v, rest, value)
	case rest != "":
		return fmt.Errorf("%s has no fields below it", seen)
	}
	return setLeaf(v, value)
}

func setLeaf(v reflect.Value, value string) error {
	raw, err := rawValue(v.Type(), value)
	if err != nil {
		return err
	}
	fresh := reflect.New(v.Type()).Elem() // a map replaces the old one; a file is merged into it
	var fs faults
	decodeField(&fs, "", raw, fresh)
	if err := fs.err(); err != nil {
		return err
	}
	v.Set(fresh)
	return nil
}

func setMapEntry(m reflect.Value, key, value string) error {
	entry := reflect.New(m.Type().Elem()).Elem()
	if err := setLeaf(entry, value); err != nil {
		return err
	}
	whole := reflect.MakeMap(m.Type())
	for _, k := range m.MapKeys() {
		whole.SetMapIndex(k, m.MapIndex(k))
	}
	whole.SetMapIndex(reflect.ValueOf(key), entry)
	m.Set(whole)
	return nil
}

// rawValue converts value to JSON for a field of type t.
func rawValue(t reflect.Type, value string) (json.RawMessage, error) {
	switch {
	case t == reflect.TypeFor[Duration](), t.Kind() == reflect.String:
		return json.Marshal(value)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Int && !strings.HasPrefix(strings.TrimSpace(value), "["):
		return rawValue(t, "["+value+"]")
	case t.Kind() == reflect.Slice && !strings.HasPrefix(strings.TrimSpace(value), "["):
		list := []string{}
		for item := range strings.SplitSeq(value, ",") {
			if item = strings.TrimSpace(item); item != "" {
				list = append(list, item)
			}
		}
		return json.Marshal(list)
	case t.Kind() == reflect.Bool || t.Kind() == reflect.Int || t.Kind() == reflect.Int64:
		if raw := json.RawMessage(strings.TrimSpace(value)); json.Valid(raw) && string(raw) != "null" {
			return raw, nil
		}
		return nil, fmt.Errorf("must be %s, got %q", typeName(t), value)
	}
	raw, err := yaml.YAMLToJSONStrict([]byte(value))
	if err != nil {
		return nil, yamlError(err)
	}
	return raw, nil
}
