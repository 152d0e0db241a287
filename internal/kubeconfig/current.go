package kubeconfig

import (
	"encoding/json"

	"go.yaml.in/yaml/v3"
)

// setCurrent sets the current context, which is empty.
func (x *edit) setCurrent(name string) error {
	d, err := parse(x.text)
	if err != nil {
		return err
	}
	key, value := d.find(currentContext)
	switch {
	case key == nil && d.flow():
	case key == nil:
		x.remember(currentContext, nil)
		x.text = d.insertField(currentContext + ": " + name + "\n")
	case d.flow():
		return x.replaceString(d, value, name)
	default:
		from, to, err := d.afterKey(key)
		if err != nil {
			return err
		}
		form := string(d.text[from:to])
		x.remember(currentContext, &form)
		x.text = d.replace(from, to, " "+name)
	}
	return nil
}

// clearCurrent removes the current context.
func (x *edit) clearCurrent() error {
	d, err := parse(x.text)
	if err != nil {
		return err
	}
	key, value := d.find(currentContext)
	if d.flow() {
		return x.replaceString(d, value, "")
	}
	if form, ok := x.forms[currentContext]; ok && form == nil {
		delete(x.forms, currentContext)
		at := d.line(key.Line)
		x.text = d.replace(at, d.nextLine(at), "")
		return nil
	}
	return x.empty(currentContext, ` ""`)
}

// replaceString replaces a string in JSON.
func (x *edit) replaceString(d *document, value *yaml.Node, by string) error {
	from := d.offset(value)
	to, err := d.jsonEnd(from)
	if err != nil {
		return err
	}
	text, err := json.Marshal(by)
	if err != nil {
		return err
	}
	x.text = d.replace(from, to, string(text))
	return nil
}
