package kubeconfig

import (
	"fmt"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// content is a decoded kubeconfig.
type content map[string]any

func decode(text []byte) (content, error) {
	if _, err := parse(text); err != nil {
		return nil, err
	}
	var c map[string]any
	if err := yaml.Unmarshal(text, &c); err != nil { // also finds duplicate fields
		return nil, fmt.Errorf("not a kubeconfig: %w", err)
	}
	return c, nil
}

// entry returns the first entry called name of a list, or nil.
func (c content) entry(list, name string) map[string]any {
	items, _ := c[list].([]any)
	for _, item := range items {
		if m, ok := item.(map[string]any); ok && m["name"] == name {
			return m
		}
	}
	return nil
}

func (c content) current() string {
	s, _ := c[currentContext].(string)
	return s
}

// without returns the content without the entries called name and without empty fields.
func (c content) without(name string) content {
	out := content{}
	maps.Copy(out, c)
	for _, list := range lists {
		items, isList := c[list.name].([]any)
		others := slices.DeleteFunc(slices.Clone(items), func(item any) bool {
			m, ok := item.(map[string]any)
			return ok && m["name"] == name
		})
		out[list.name] = others
		if len(others) == 0 && (isList || c[list.name] == nil) {
			delete(out, list.name)
		}
	}
	if s := c.current(); (s == "" || s == name) && (c[currentContext] == nil || c[currentContext] == s) {
		delete(out, currentContext)
	}
	return out
}
