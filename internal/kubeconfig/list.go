package kubeconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	kyaml "sigs.k8s.io/yaml"
)

// addItem adds an entry at the start of a list.
func (x *edit) addItem(list string, item map[string]any) error {
	d, err := parse(x.text)
	if err != nil {
		return err
	}
	block, inline, err := encode(item)
	if err != nil {
		return err
	}
	key, value := d.find(list)
	switch {
	case d.root == nil:
		return errors.New("it has no fields")
	case key == nil && d.flow():
		return fmt.Errorf("it has the form of JSON, and no list of %s", list)
	case key == nil:
		x.remember(list, nil)
		x.text = d.insertField(list + ":\n" + block)
	case d.flow() && isNull(value):
		from := d.offset(value)
		to, err := d.jsonEnd(from)
		if err != nil {
			return err
		}
		x.text = d.replace(from, to, "["+inline+"]")
	case value.Kind == yaml.SequenceNode && value.Style&yaml.FlowStyle != 0 && (d.flow() || len(value.Content) > 0):
		if len(value.Content) > 0 {
			inline += ", "
		}
		at := d.offset(value) + len("[")
		x.text = d.replace(at, at, inline)
	case isNull(value) || value.Kind == yaml.SequenceNode && len(value.Content) == 0:
		from, to, err := d.afterKey(key)
		if err != nil {
			return err
		}
		form := string(d.text[from:to])
		x.remember(list, &form)
		x.text = d.replace(from, to, d.lines("\n"+strings.TrimSuffix(block, "\n"), key.Column-1, key))
	case value.Kind == yaml.SequenceNode:
		at := d.nextLine(d.line(key.Line))
		x.text = d.replace(at, at, d.lines(block, d.indent(key), key))
	default:
		return fmt.Errorf("%s is not a list", list)
	}
	return nil
}

// removeItem removes the first entry called name from a list, if there is one.
func (x *edit) removeItem(list, name string) error {
	d, err := parse(x.text)
	if err != nil {
		return err
	}
	key, value := d.find(list)
	if key == nil || value.Kind != yaml.SequenceNode {
		return nil
	}
	i := slices.IndexFunc(value.Content, func(n *yaml.Node) bool { return nameOf(n) == name })
	if i < 0 {
		return nil
	}
	from, to, err := d.item(key, value, i)
	if err != nil {
		return err
	}
	last := len(value.Content) == 1 && value.Style&yaml.FlowStyle == 0
	if form, ok := x.forms[list]; last && ok && form == nil {
		from = d.line(key.Line) // the field did not exist
	}
	if to == len(d.text) && value.Style&yaml.FlowStyle == 0 && d.text[to-1] != '\n' { // the file does not end with a newline
		from = len(bytes.TrimRight(d.text[:from], "\r\n"))
	}
	x.text = d.replace(from, to, "")
	if last {
		return x.empty(list, " []")
	}
	return nil
}

// empty replaces the value of a field by the text before an entry was added, or by a default. It does nothing if the field does not exist.
func (x *edit) empty(field, standard string) error {
	form, ok := x.forms[field]
	delete(x.forms, field)
	d, err := parse(x.text)
	if err != nil {
		return err
	}
	key, _ := d.find(field)
	if key == nil {
		return nil
	}
	from, to, err := d.afterKey(key)
	if err != nil {
		return err
	}
	if ok && form != nil {
		standard = *form
	} else if field != currentContext {
		standard += string(d.text[from:to]) // a comment
	}
	x.text = d.replace(from, to, standard)
	return nil
}

func (x *edit) remember(field string, form *string) {
	if x.forms == nil {
		x.forms = map[string]*string{}
	}
	x.forms[field] = form
}

// encode returns an entry as a part of a list in lines, and in brackets.
func encode(item map[string]any) (block, inline string, err error) {
	lines, err := kyaml.Marshal([]any{item})
	if err != nil {
		return "", "", err
	}
	text, err := json.Marshal(item)
	return string(lines), string(text), err
}

func nameOf(n *yaml.Node) string {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == "name" {
			return n.Content[i+1].Value
		}
	}
	return ""
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }
