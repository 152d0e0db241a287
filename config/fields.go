package config

import (
	"fmt"
	"reflect"
	"strings"
)

// fieldByName returns the field of the struct v with this JSON name. Case matters.
func fieldByName(v reflect.Value, name string) (reflect.Value, bool) {
	t := v.Type()
	for i := range t.NumField() {
		if jsonName(t.Field(i)) == name {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func omitsEmpty(f reflect.StructField) bool {
	_, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
	return opts == "omitempty"
}

// leaf is a field that is not a group of fields.
type leaf struct {
	path  string
	value reflect.Value
	tag   reflect.StructTag
}

// leaves lists all fields of c in the order of their declaration.
func (c *NodeConfig) leaves() []leaf {
	var out []leaf
	var visit func(string, reflect.Value)
	visit = func(path string, group reflect.Value) {
		for i := range group.NumField() {
			field, v := group.Type().Field(i), group.Field(i)
			at := join(path, jsonName(field))
			if v.Kind() == reflect.Struct {
				visit(at, v)
				continue
			}
			out = append(out, leaf{at, v, field.Tag})
		}
	}
	visit("", reflect.ValueOf(c).Elem())
	return out
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// didYouMean returns a suggestion for a key that t does not have, or "": the most similar field of t, or the field of the same
// name elsewhere in the configuration.
func didYouMean(path, key string, t reflect.Type) string {
	best, distance := "", len(key)/2+1
	for i := range t.NumField() {
		name := jsonName(t.Field(i))
		if d := editDistance(strings.ToLower(key), strings.ToLower(name)); d < distance {
			best, distance = name, d
		}
	}
	if best != "" {
		return fmt.Sprintf(", did you mean %s?", join(path, best))
	}
	for _, l := range Default().leaves() {
		if strings.EqualFold(l.path[strings.LastIndexByte(l.path, '.')+1:], key) {
			return fmt.Sprintf(", did you mean %s?", l.path)
		}
	}
	return ""
}

// editDistance returns the number of letters to insert, delete, replace or swap with their neighbour to change a to b.
func editDistance(a, b string) int {
	var before []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(next[j-1]+1, row[j]+1, row[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
