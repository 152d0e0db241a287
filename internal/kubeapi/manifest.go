package kubeapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// document is one object of a manifest.
type document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
	json  []byte
	// place is the file and the line of the document, "" if the manifest is not a file.
	place string
}

func (d document) String() string { return d.id().String() }

func (d document) id() ObjectID { return ObjectID{d.Kind, d.Metadata.Namespace, d.Metadata.Name} }

// group returns the API group, "" for the core group.
func (d document) group() string {
	group, _, ok := strings.Cut(d.APIVersion, "/")
	if !ok {
		return ""
	}
	return group
}

// fault adds the place of the document to an error.
func (d document) fault(err error) error {
	if d.place == "" {
		return err
	}
	return fmt.Errorf("%s: %w", d.place, err)
}

// parseManifest parses a YAML stream. It returns the valid documents together with the joined errors of the others.
func parseManifest(manifest []byte) ([]document, error) { return parseFile("", manifest) }

// parseFile parses a YAML stream or a JSON object. Errors and documents have the line in the file path, if path is not empty,
// and otherwise the number of the document.
func parseFile(path string, manifest []byte) ([]document, error) {
	var (
		docs []document
		errs []error
	)
	for n, part := range splitDocuments(manifest) {
		js, err := yaml.YAMLToJSONStrict(part.text)
		if err == nil && string(js) == "null" {
			continue // only comments
		}
		var more []document
		if err == nil {
			more, err = addDocument(nil, js)
		}
		for i := range more {
			if path != "" {
				more[i].place = path + ":" + strconv.Itoa(part.line)
			}
		}
		docs = append(docs, more...)
		switch {
		case err != nil && path != "":
			errs = append(errs, part.fault(path, err))
		case err != nil:
			errs = append(errs, fmt.Errorf("parse manifest document %d: %w", n+1, err))
		}
	}
	return docs, errors.Join(errs...)
}

// part is a document of a YAML stream. line is the number of the first line that is neither empty nor a comment, and first that of
// the text.
type part struct {
	text        []byte
	first, line int
}

// splitDocuments splits a YAML stream at the lines of three dashes.
func splitDocuments(stream []byte) []part {
	stream = bytes.TrimPrefix(stream, []byte("\ufeff"))
	parts := []part{{first: 1}}
	n := 0
	for line := range bytes.Lines(stream) {
		n++
		last := &parts[len(parts)-1]
		if rest, ok := bytes.CutPrefix(line, []byte("---")); ok && (len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n")) {
			if len(last.text) > 0 {
				parts = append(parts, part{})
				last = &parts[len(parts)-1]
			}
			*last = part{first: n}
			line = append([]byte("   "), rest...) // the content may begin on this line
		}
		if text := bytes.TrimSpace(line); last.line == 0 && len(text) > 0 && text[0] != '#' {
			last.line = n
		}
		last.text = append(last.text, line...)
	}
	return parts
}

// yamlLine is the position in an error of the YAML parser.
var yamlLine = regexp.MustCompile(`(?:error converting YAML to JSON: )?yaml: (?:unmarshal errors:\s+)?line (\d+): `)

// fault returns an error with its line in the file.
func (p part) fault(path string, err error) error {
	text, line := err.Error(), max(p.line, p.first)
	if m := yamlLine.FindStringSubmatchIndex(text); m != nil {
		if n, err := strconv.Atoi(text[m[2]:m[3]]); err == nil {
			line, text = p.first+n-1, text[:m[0]]+text[m[1]:]
		}
	}
	return fmt.Errorf("%s:%d: %s", path, line, text)
}

func addDocument(docs []document, js []byte) ([]document, error) {
	d := document{json: js}
	if err := json.Unmarshal(js, &d); err != nil {
		return docs, err
	}
	if d.Kind == "List" {
		var errs []error
		for i, item := range d.Items {
			var err error
			if docs, err = addDocument(docs, item); err != nil {
				errs = append(errs, fmt.Errorf("item %d: %w", i+1, err))
			}
		}
		return docs, errors.Join(errs...)
	}
	if d.APIVersion == "" || d.Kind == "" || d.Metadata.Name == "" {
		return docs, errors.New("apiVersion, kind and metadata.name are required")
	}
	d.Items = nil
	return append(docs, d), nil
}
