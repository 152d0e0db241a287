package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Settings has what a user has set of a configuration: a configuration file and, on top of it, single fields. The data of a node
// contains the settings of its last start.
type Settings struct {
	// File is the absolute path of the configuration file. It is empty if there is none, or if it can be read only once, such as a
	// pipe.
	File string `json:"file,omitempty"`
	// Document is the content of the configuration file.
	Document string `json:"document,omitempty"`
	// Fields are the fields that were set after the file, in this order.
	Fields []Setting `json:"fields,omitempty"`

	// fileRemembered is set if File and Document are those of an earlier start.
	fileRemembered bool
}

// Setting is a field that was set, as for NodeConfig.Set.
type Setting struct {
	Path  string `json:"path"`
	Value string `json:"value"`

	remembered bool // of an earlier start
}

// ReadSettings returns settings with the configuration file at path.
//
// Errors: of class errdefs.ErrConfig if the file is not readable. Build checks its content.
func ReadSettings(path string) (Settings, error) {
	b, regular, err := readFile(path)
	if err != nil {
		return Settings{}, err
	}
	s := Settings{Document: string(b) + "\n"} // an empty document is invalid, but it is one
	if regular {
		if s.File, err = filepath.Abs(path); err != nil {
			return Settings{}, errdefs.Config("read config %s: %w", path, err)
		}
	}
	return s, nil
}

// readFile reads a configuration file and reports whether it is a regular file, which can be read again.
func readFile(path string) (b []byte, regular bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, false, errdefs.Config("read config: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err = io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err == nil && len(b) > maxFileSize {
		err = fmt.Errorf("larger than %d bytes", maxFileSize)
	}
	if err != nil {
		return nil, false, errdefs.Config("read config %s: %w", path, err)
	}
	st, err := f.Stat()
	return b, err == nil && st.Mode().IsRegular(), nil
}

// Set sets the field at path after all others. It replaces an earlier value of this field, and of the entries of a map.
func (s *Settings) Set(path, value string) {
	s.Unset(path)
	s.Fields = append(s.Fields, Setting{Path: path, Value: value})
}

// Unset removes the field at path from Fields, with the entries of a map. It reports whether it removed something.
func (s *Settings) Unset(path string) bool {
	was := len(s.Fields)
	s.Fields = slices.DeleteFunc(slices.Clone(s.Fields), func(f Setting) bool { return isPartOf(f.Path, path) })
	return len(s.Fields) < was
}

// isPartOf reports whether path is group or a part of it.
func isPartOf(path, group string) bool { return path == group || strings.HasPrefix(path, group+".") }

// Reread reads the configuration file again.
//
// Errors: of class errdefs.ErrConfig if the file is not readable.
func (s *Settings) Reread() error {
	if s.File == "" {
		return nil
	}
	b, _, err := readFile(s.File)
	if err == nil {
		s.Document = string(b) + "\n"
	}
	return err
}

// Over returns the settings s on top of those of an earlier start. A configuration file in s replaces all of them, because it is the
// whole configuration.
func (s Settings) Over(earlier Settings) Settings {
	if s.Document != "" || s.File != "" {
		return s
	}
	merged := Settings{File: earlier.File, Document: earlier.Document, fileRemembered: true}
	for _, f := range earlier.Fields {
		f.remembered = true
		merged.Fields = append(merged.Fields, f)
	}
	for _, f := range s.Fields {
		merged.Set(f.Path, f.Value)
	}
	return merged
}

// Remembered returns the configuration file and the fields that are those of an earlier start. The file is "-" if it was a pipe.
func (s Settings) Remembered() (file string, fields []Setting) {
	if s.fileRemembered && s.Document != "" {
		file = cmp.Or(s.File, "-")
	}
	return file, slices.DeleteFunc(slices.Clone(s.Fields), func(f Setting) bool { return !f.remembered })
}

// KeptWithData reports whether the data of a node contains the field at path in other places: the data dir is in the registry, and the
// joined cluster in the join record.
func KeptWithData(path string) bool { return path == "dataDir" || isPartOf(path, "join") }

// WithoutKept returns the settings without fields for which KeptWithData returns true.
func (s Settings) WithoutKept() Settings {
	s.Fields = slices.DeleteFunc(slices.Clone(s.Fields), func(f Setting) bool { return KeptWithData(f.Path) })
	return s
}

// Build returns the configuration with the settings, for the node called name. The fields override the file, which overrides the
// defaults. It reports all errors together; their class is errdefs.ErrConfig.
func (s Settings) Build(name string) (*NodeConfig, error) {
	cfg := Default()
	if s.Document != "" || s.File != "" {
		var err error
		if cfg, err = LoadBytes([]byte(s.Document), s.source()); err != nil {
			return nil, err
		}
	}
	faults := []error{cfg.UseName(name)}
	for _, f := range s.Fields {
		faults = append(faults, cfg.Set(f.Path, f.Value))
	}
	return cfg, errors.Join(faults...)
}

// source describes the configuration file.
func (s Settings) source() string {
	if s.File == "" {
		return "config"
	}
	return s.File
}

// Origin describes where the value of a field comes from.
type Origin struct {
	// Kind is one of the Origin constants.
	Kind string `json:"kind"`
	// File is the path of the configuration file. It is empty if the file was a pipe.
	File string `json:"file,omitempty"`
	// Remembered is set if the value was set at an earlier start.
	Remembered bool `json:"remembered,omitempty"`
}

// Origins of a value.
const (
	OriginDefault = "default" // also a value that the node chose, for example a free port
	OriginFile    = "file"
	OriginFlag    = "flag"
)

// String describes the origin for people.
func (o Origin) String() string {
	text := o.Kind
	if o.File != "" {
		text += " " + o.File
	}
	if o.Remembered {
		text += ", remembered"
	}
	return text
}

// Origins returns the origin of each field by its path. Settings that Build refuses are ignored.
func (s Settings) Origins() map[string]Origin {
	fromFile := s.documentFields()
	out := map[string]Origin{}
	for _, l := range (&NodeConfig{}).leaves() {
		o := Origin{Kind: OriginDefault}
		if slices.ContainsFunc(fromFile, func(path string) bool { return isPartOf(path, l.path) }) {
			o = Origin{Kind: OriginFile, File: s.File, Remembered: s.fileRemembered}
		}
		for _, f := range s.Fields {
			if isPartOf(f.Path, l.path) {
				o = Origin{Kind: OriginFlag, Remembered: f.remembered}
			}
		}
		out[l.path] = o
	}
	return out
}

// documentFields returns the paths of the fields that the document sets.
func (s Settings) documentFields() []string {
	j, err := yaml.YAMLToJSON([]byte(s.Document))
	if err != nil {
		return nil
	}
	var paths []string
	var visit func(path string, raw json.RawMessage)
	visit = func(path string, raw json.RawMessage) {
		var object map[string]json.RawMessage
		if string(raw) == "null" {
			return
		}
		if json.Unmarshal(raw, &object) != nil {
			paths = append(paths, path)
			return
		}
		for key, value := range object {
			visit(join(path, key), value)
		}
	}
	visit("", j)
	return paths
}

// Difference is a field with different values in two configurations. The values are JSON, and empty if the field is not set.
type Difference struct {
	Field, Was, Now string
}

// Differences returns the fields in which two configurations differ, in the order of their declaration.
func Differences(was, now *NodeConfig) []Difference {
	var out []Difference
	after := now.leaves()
	for i, l := range was.leaves() {
		d := Difference{Field: l.path, Was: leafText(l.value), Now: leafText(after[i].value)}
		if d.Was != d.Now {
			out = append(out, d)
		}
	}
	return out
}

// leafText returns a value as JSON, or "" for an empty list, map or string.
func leafText(v reflect.Value) string {
	if k := v.Kind(); (k == reflect.Map || k == reflect.Slice || k == reflect.String) && v.Len() == 0 {
		return ""
	}
	b, err := json.Marshal(v.Interface())
	if err != nil {
		return fmt.Sprint(v.Interface())
	}
	return string(b)
}
