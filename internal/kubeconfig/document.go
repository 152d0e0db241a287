package kubeconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// document is a kubeconfig as text, with the positions of its parts.
type document struct {
	text []byte
	// root is the mapping of the document. It is nil if the file has only comments.
	root *yaml.Node
}

func parse(text []byte) (*document, error) {
	if bytes.Count(text, []byte("\r")) != bytes.Count(text, []byte("\r\n")) {
		return nil, unsupported(errors.New("it has carriage returns without line feeds"))
	}
	var top, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	switch err := dec.Decode(&top); {
	case errors.Is(err, io.EOF):
		return &document{text: text}, nil
	case err != nil:
		return nil, fmt.Errorf("not a kubeconfig: %w", err)
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("not a kubeconfig: it has several YAML documents")
	}
	root := top.Content[0]
	if isNull(root) {
		return &document{text: text}, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, errors.New("not a kubeconfig: it is not a YAML mapping")
	}
	return &document{text, root}, nil
}

// flow reports whether the document has the form of JSON.
func (d *document) flow() bool { return d.root != nil && d.root.Style&yaml.FlowStyle != 0 }

// find returns the key and the value of a field, or nil.
func (d *document) find(name string) (key, value *yaml.Node) {
	if d.root == nil {
		return nil, nil
	}
	for i := 0; i+1 < len(d.root.Content); i += 2 {
		if d.root.Content[i].Value == name {
			return d.root.Content[i], d.root.Content[i+1]
		}
	}
	return nil, nil
}

// offset returns the position of a node in the text. yaml counts lines and characters from 1.
func (d *document) offset(n *yaml.Node) int {
	at := d.line(n.Line)
	for range n.Column - 1 {
		_, size := utf8.DecodeRune(d.text[at:])
		at += size
	}
	return at
}

// line returns the position of the start of a line, which is counted from 1.
func (d *document) line(number int) int {
	at := 0
	for range number - 1 {
		at = d.nextLine(at)
	}
	return at
}

// nextLine returns the position after the end of the line at a position.
func (d *document) nextLine(at int) int {
	if i := bytes.IndexByte(d.text[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(d.text)
}

// afterKey returns the part of the text between the colon after a key and the end of the line.
func (d *document) afterKey(key *yaml.Node) (from, to int, err error) {
	from = d.offset(key) + len(key.Value)
	if key.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
		from += len(`""`)
	}
	to = d.nextLine(d.line(key.Line))
	to -= len(d.text[:to]) - len(bytes.TrimRight(d.text[:to], "\r\n"))
	colon := -1
	if from <= to {
		colon = bytes.IndexByte(d.text[from:to], ':')
	}
	if colon < 0 {
		return 0, 0, fmt.Errorf("line %d: no colon after %s", key.Line, key.Value)
	}
	return from + colon + 1, to, nil
}

// indent returns the number of spaces before the dashes of the list in lines after a key.
func (d *document) indent(key *yaml.Node) int {
	for at := d.nextLine(d.line(key.Line)); at < len(d.text); at = d.nextLine(at) {
		if spaces, content := d.contentOf(at); content != "" {
			return spaces
		}
	}
	return 0
}

// contentOf returns the number of spaces before the content of the line at a position, and the content, which is empty for a comment.
func (d *document) contentOf(at int) (spaces int, content string) {
	line := string(d.text[at:d.nextLine(at)])
	content = strings.TrimLeft(line, " ")
	spaces = len(line) - len(content)
	if content = strings.TrimSpace(content); strings.HasPrefix(content, "#") {
		content = ""
	}
	return spaces, content
}

// item returns the part of the text with an entry of the list after a key. Comments after it belong to the next entry.
func (d *document) item(key, list *yaml.Node, i int) (from, to int, err error) {
	if list.Style&yaml.FlowStyle != 0 {
		return d.flowItem(list, i)
	}
	dash := d.indent(key)
	from = d.line(list.Content[i].Line)
	for from > 0 && !d.startsWithDash(from, dash) { // the dash may be on a line of its own
		from = d.line(bytes.Count(d.text[:from], []byte("\n")))
	}
	if !d.startsWithDash(from, dash) {
		return 0, 0, fmt.Errorf("line %d: the start of the entry is not found", list.Content[i].Line)
	}
	to = d.nextLine(from)
	for at := to; at < len(d.text); at = d.nextLine(at) {
		spaces, content := d.contentOf(at)
		if content == "" {
			continue
		}
		if spaces <= dash {
			break
		}
		to = d.nextLine(at)
	}
	return from, to, nil
}

func (d *document) startsWithDash(at, indent int) bool {
	line := d.text[at:d.nextLine(at)]
	return len(line) > indent && strings.Trim(string(line[:indent]), " ") == "" && line[indent] == '-'
}

// flowItem is item for a list in brackets, with the comma that separates the entry from the others.
func (d *document) flowItem(list *yaml.Node, i int) (from, to int, err error) {
	from = d.offset(list.Content[i])
	if to, err = d.jsonEnd(from); err != nil {
		return 0, 0, err
	}
	rest := d.text[to:]
	if after, ok := bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(",")); ok {
		to = len(d.text) - len(bytes.TrimPrefix(after, []byte(" ")))
	} else if before, ok := bytes.CutSuffix(bytes.TrimRight(d.text[:from], " \t\r\n"), []byte(",")); ok {
		from = len(before)
	}
	return from, to, nil
}

// jsonEnd returns the end of the JSON value at a position.
func (d *document) jsonEnd(at int) (int, error) {
	var value json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(d.text[at:]))
	if err := dec.Decode(&value); err != nil {
		return 0, fmt.Errorf("an entry in brackets is not JSON: %w", err)
	}
	return at + int(dec.InputOffset()), nil
}

// replace returns the text with a part replaced.
func (d *document) replace(from, to int, by string) []byte {
	return append(append(bytes.Clone(d.text[:from]), by...), d.text[to:]...)
}

// insertField inserts a field before the others.
func (d *document) insertField(text string) []byte {
	first := d.root.Content[0]
	at := d.line(first.Line)
	return d.replace(at, at, d.lines(text, first.Column-1, first))
}

// lines returns text with spaces before each line that is not empty, and with the line end after the node.
func (d *document) lines(text string, indent int, n *yaml.Node) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line != "\n" {
			line = strings.Repeat(" ", indent) + line
		}
		b.WriteString(line)
	}
	if start := d.line(n.Line); bytes.HasSuffix(d.text[start:d.nextLine(start)], []byte("\r\n")) {
		return strings.ReplaceAll(b.String(), "\n", "\r\n")
	}
	return b.String()
}
