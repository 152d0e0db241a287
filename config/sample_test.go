package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"
)

func TestSampleIsDefault(t *testing.T) {
	t.Parallel()
	c, err := LoadBytes(Sample(), "sample")
	assert.NilError(t, err)
	assert.DeepEqual(t, c, Default())
}

// TestSampleMentionsEveryField checks that the sample has all fields, with their meaning, in the order of their declaration.
// A field without a default is a comment with a valid example.
func TestSampleMentionsEveryField(t *testing.T) {
	t.Parallel()
	var want, got []string
	for _, l := range (&NodeConfig{}).leaves() {
		want = append(want, l.path)
	}
	examples := complete()
	for _, d := range Fields() {
		assert.Assert(t, strings.HasSuffix(d.Doc, "."), "%s: %q is not a sentence", d.Path, d.Doc)
		if d.Group {
			continue
		}
		got = append(got, d.Path)
		assert.Assert(t, d.Value != "", d.Path)
		if d.Optional && d.Path != "name" {
			assert.NilError(t, examples.Set(d.Path, d.Value), "the example of %s", d.Path)
		}
	}
	assert.DeepEqual(t, got, want)
	examples.Join.BootstrapKubeconfig, examples.Join.Kubeconfig = "", ""                // only one way to join at a time
	for _, runtime := range []string{RuntimeContainerd, RuntimeCRIO, RuntimeExternal} { // one at a time, with its own settings
		c := *examples
		c.CRI.Runtime = runtime
		if runtime != RuntimeContainerd {
			c.Containerd = Default().Containerd
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

const (
	referenceFile  = "../docs/configuration.md"
	referenceBegin = "<!-- Generated from config/sample.yaml: go test ./config -run TestReference -update -->\n"
	referenceEnd   = "<!-- End of the generated part. -->\n"
)

// TestReference checks that docs/configuration.md has all fields. With -update it writes the table again.
func TestReference(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(referenceFile)
	assert.NilError(t, err)
	before, rest, ok := strings.Cut(string(b), referenceBegin)
	assert.Assert(t, ok, "%s: no line %s", referenceFile, referenceBegin)
	_, after, ok := strings.Cut(rest, referenceEnd)
	assert.Assert(t, ok, "%s: no line %s", referenceFile, referenceEnd)
	want := before + referenceBegin + reference() + referenceEnd + after
	if golden.FlagUpdate() {
		assert.NilError(t, os.WriteFile(referenceFile, []byte(want), 0o644))
		return
	}
	assert.Equal(t, string(b), want, "%s is out of date: %s", filepath.Base(referenceFile), referenceBegin)
}

func reference() string {
	var b strings.Builder
	b.WriteString("\n| Field | Default | Meaning |\n|---|---|---|\n")
	for _, d := range Fields() {
		doc := strings.ReplaceAll(d.Doc, "|", "\\|")
		if d.Group {
			fmt.Fprintf(&b, "| **%s** | | **%s** |\n", d.Path, doc)
			continue
		}
		value := "`" + strings.ReplaceAll(d.Value, "\n", "`<br>`") + "`"
		if d.Optional {
			value = "none; for example " + value
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", d.Path, value, doc)
	}
	b.WriteString("\n")
	return b.String()
}
