package config

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"
)

const (
	sampleFile     = "sample.yaml"
	referenceFile  = "../docs/configuration.md"
	referenceBegin = "<!-- Generated from the fields of config.NodeConfig: go generate ./config -->\n"
	referenceEnd   = "<!-- End of the generated part. -->\n"

	sampleHead = `# The configuration of a node, with every field and its default. Keep the lines that you change and delete the others:
# absent fields have their defaults. A line "#field: value" shows an example of a field without a default.
#
# rootlessnode up --config FILE              uses the file
# rootlessnode up --set network.mtu=65520    changes one field
# rootlessnode config effective              prints the resulting configuration of a node
`
	sampleColumns = 124
)

// TestGenerated checks that sample.yaml and the table in docs/configuration.md match the fields of NodeConfig: their comments, tags
// and order. With -update, as in go generate, it writes them again.
func TestGenerated(t *testing.T) {
	t.Parallel()
	docs := readDocs(t)
	page, err := os.ReadFile(referenceFile)
	assert.NilError(t, err)
	before, rest, ok := strings.Cut(string(page), referenceBegin)
	assert.Assert(t, ok, "%s: no line %s", referenceFile, referenceBegin)
	_, after, ok := strings.Cut(rest, referenceEnd)
	assert.Assert(t, ok, "%s: no line %s", referenceFile, referenceEnd)
	for file, want := range map[string]string{
		sampleFile:    renderSample(docs),
		referenceFile: before + referenceBegin + renderReference(docs) + referenceEnd + after,
	} {
		if golden.FlagUpdate() {
			assert.NilError(t, os.WriteFile(file, []byte(want), 0o644))
			continue
		}
		got, err := os.ReadFile(file)
		assert.NilError(t, err)
		assert.Equal(t, string(got), want, "%s is stale: go generate ./config", file)
	}
}

// fieldDoc is a field or a group of fields, as the generated files show it.
type fieldDoc struct {
	path, doc string
	// value is the default, or an example if optional is set. It is empty for a group.
	value    string
	optional bool
	// inEntry is set for the fields of the entries of a map, which the sample does not have.
	inEntry bool
	// gap is set if a blank line precedes the field.
	gap bool
	// entries are the lines of a map with a default.
	entries []string
}

// readDocs reads the structs of this package, in the order of NodeConfig.
func readDocs(t *testing.T) []fieldDoc {
	t.Helper()
	files, err := filepath.Glob("*.go")
	assert.NilError(t, err)
	fset, structs := token.NewFileSet(), map[string]*ast.StructType{}
	for _, name := range files {
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		assert.NilError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if st, ok := spec.Type.(*ast.StructType); ok {
					structs[spec.Name.Name] = st
				}
			}
			return true
		})
	}
	var out []fieldDoc
	inEntry := false
	var visit func(path string, st *ast.StructType)
	visit = func(path string, st *ast.StructType) {
		end, afterGroup := fset.Position(st.Pos()).Line, false
		for _, f := range st.Fields.List {
			text, err := strconv.Unquote(f.Tag.Value)
			assert.NilError(t, err)
			tag := reflect.StructTag(text)
			name, _, _ := strings.Cut(tag.Get("json"), ",")
			d := fieldDoc{path: join(path, name), doc: strings.Join(strings.Fields(f.Doc.Text()), " ")}
			d.gap = fset.Position(f.Doc.Pos()).Line > end+1
			end = fset.Position(f.End()).Line
			assert.Assert(t, strings.HasSuffix(d.doc, "."), "%s: the comment %q is not a sentence", d.path, d.doc)
			if group, ok := f.Type.(*ast.Ident); ok && structs[group.Name] != nil {
				d.gap, afterGroup = d.gap || path == "", true
				out = append(out, d)
				visit(d.path, structs[group.Name])
				continue
			}
			d.gap, afterGroup = d.gap || path == "" && afterGroup, false
			value, fixed := tag.Lookup("default")
			example, optional := tag.Lookup("example")
			assert.Assert(t, fixed != optional, "%s needs either a default or an example", d.path)
			d.value, d.optional = value+example, optional
			if inner, ok := strings.CutPrefix(value, "{"); ok {
				d.entries = strings.Split(strings.TrimSuffix(inner, "}"), ", ")
			}
			d.inEntry = inEntry
			out = append(out, d)
			if m, ok := f.Type.(*ast.MapType); ok {
				if value, ok := m.Value.(*ast.Ident); ok && structs[value.Name] != nil {
					inEntry = true
					visit(join(d.path, "NAME"), structs[value.Name])
					inEntry = false
				}
			}
		}
	}
	visit("", structs["NodeConfig"])
	return out
}

func renderSample(docs []fieldDoc) string {
	var b strings.Builder
	b.WriteString(sampleHead)
	for i, d := range docs {
		if d.inEntry {
			continue
		}
		if d.gap || i == 0 {
			b.WriteString("\n")
		}
		indent := strings.Repeat("  ", strings.Count(d.path, "."))
		line := indent + "#"
		for word := range strings.FieldsSeq(d.doc) {
			if len(line)+1+len(word) > sampleColumns {
				b.WriteString(line + "\n")
				line = indent + "#"
			}
			line += " " + word
		}
		b.WriteString(line + "\n" + indent)
		if d.optional {
			b.WriteString("#")
		}
		b.WriteString(d.path[strings.LastIndexByte(d.path, '.')+1:] + ":")
		if d.value != "" && d.entries == nil {
			b.WriteString(" " + d.value)
		}
		b.WriteString("\n")
		for _, e := range d.entries {
			b.WriteString(indent + "  " + e + "\n")
		}
	}
	return b.String()
}

func renderReference(docs []fieldDoc) string {
	var b strings.Builder
	b.WriteString("\n| Field | Default | Meaning |\n|---|---|---|\n")
	for _, d := range docs {
		doc := strings.ReplaceAll(d.doc, "|", "\\|")
		if Reloadable(d.path) {
			doc += " *Reloadable.*"
		}
		value := "`" + d.value + "`"
		switch {
		case d.value == "":
			fmt.Fprintf(&b, "| **%s** | | **%s** |\n", d.path, doc)
			continue
		case d.entries != nil:
			value = "`" + strings.Join(d.entries, "`<br>`") + "`"
		case d.optional:
			value = "none; for example " + value
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", d.path, value, doc)
	}
	b.WriteString("\n")
	return b.String()
}

func TestSampleIsDefault(t *testing.T) {
	t.Parallel()
	c, err := LoadBytes(Sample(), "sample")
	assert.NilError(t, err)
	assert.DeepEqual(t, c, Default())
}

func TestFields(t *testing.T) {
	t.Parallel()
	var want []FieldDoc
	for _, d := range readDocs(t) {
		if d.value != "" && !d.inEntry {
			want = append(want, FieldDoc{Path: d.path, Doc: d.doc})
		}
	}
	got := Fields()
	for i := range got {
		got[i].Values = nil
	}
	assert.DeepEqual(t, got, want)
}

// TestFieldValues checks that a field with few valid values lists them all.
func TestFieldValues(t *testing.T) {
	t.Parallel()
	for _, f := range Fields() {
		for _, v := range f.Values {
			if f.Path == "apiVersion" || f.Path == "kind" {
				continue // cannot be set
			}
			assert.NilError(t, Default().Set(f.Path, v))
		}
	}
	values := map[string]string{}
	for _, f := range Fields() {
		values[f.Path] = strings.Join(f.Values, " ")
	}
	assert.Equal(t, values["cni"], "flannel none")
	assert.Equal(t, values["network.ipv6"], "true false")
	assert.Equal(t, values["network.slirpSandbox"], "auto true false")
	assert.Equal(t, values["network.driver"], strings.Join(networkDrivers(), " "))
	assert.Equal(t, values["network.mtu"], "")
}

// TestExamplesAreValid checks that the example of each field without a default is valid.
func TestExamplesAreValid(t *testing.T) {
	t.Parallel()
	examples := complete()
	for _, l := range (&NodeConfig{}).leaves() {
		if example, ok := l.tag.Lookup("example"); ok && l.path != "name" {
			assert.NilError(t, examples.Set(l.path, example), "the example of %s", l.path)
		}
	}
	examples.Join.BootstrapKubeconfig, examples.Join.Kubeconfig = "", ""                // only one way to join at a time
	examples.Addons = nil                                                               // not on a worker
	examples.Containerd.RegistryConfigDir = ""                                          // instead of registries
	for _, runtime := range []string{RuntimeContainerd, RuntimeCRIO, RuntimeExternal} { // one at a time, with its own settings
		c := *examples
		c.CRI.Runtime = runtime
		if runtime != RuntimeContainerd {
			c.Containerd, c.Registries = Default().Containerd, nil
		}
		if runtime != RuntimeCRIO {
			c.CRIO = Default().CRIO
		}
		if runtime != RuntimeExternal {
			c.CRI.Endpoint = ""
		}
		assert.NilError(t, c.Validate(), runtime)
	}
}

// TestTags checks that the tag instead names fields. An unknown check panics in every test of Validate.
func TestTags(t *testing.T) {
	t.Parallel()
	var paths []string
	for _, l := range (&NodeConfig{}).leaves() {
		paths = append(paths, l.path)
	}
	for _, l := range (&NodeConfig{}).leaves() {
		if instead, ok := l.tag.Lookup("instead"); ok {
			assert.Assert(t, slices.Contains(paths, instead), "%s: %s is not a field", l.path, instead)
		}
	}
}
