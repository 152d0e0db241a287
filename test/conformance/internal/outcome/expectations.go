package outcome

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Kind is the reason why a spec is expected to fail.
type Kind string

// The kinds of expectations.
const (
	// UserNamespace: the spec needs a feature that is impossible in a user namespace.
	UserNamespace Kind = "user-namespace"
	// Image: an image of the spec cannot be built here.
	Image Kind = "image"
	// HybridCgroup: the spec passes only where the cgroup controllers are delegated.
	HybridCgroup Kind = "hybrid-cgroup"
	// HostKernel: the spec uses a driver that the kernels of some hosts do not have. It may pass on other hosts, so that a passing spec of
	// this kind is not an error.
	HostKernel Kind = "host-kernel"
	// A bug of rootlessnode.
	Ours Kind = "ours"
)

// meaning returns a description of the kind, or "" for an unknown kind.
func (k Kind) meaning() string {
	switch k {
	case UserNamespace:
		return "impossible in a user namespace"
	case Image:
		return "an image that it needs cannot be built here"
	case HybridCgroup:
		return "passes only where the cgroup controllers are delegated"
	case HostKernel:
		return "needs a driver that this host's kernel does not have"
	case Ours:
		return "a bug of rootlessnode"
	}
	return ""
}

// Expectation is a spec that is known to fail.
type Expectation struct {
	// Spec is the exact full name.
	Spec   string `json:"spec"`
	Kind   Kind   `json:"kind"`
	Reason string `json:"reason"`
	// Link is a URL with evidence. It is required for UserNamespace, because that means that the failure cannot be fixed.
	Link string `json:"link,omitempty"`
}

// Flake is a spec that is known to fail sometimes.
type Flake struct {
	Spec   string `json:"spec"`
	Reason string `json:"reason"`
}

// Expectations is the list of known failures. A spec in both lists may fail or pass.
type Expectations struct {
	Failing []Expectation `json:"expectations"`
	Flakes  []Flake       `json:"flakes"`
}

// ParseExpectations parses Expectations from YAML and returns all errors together. An empty document is valid: all specs are expected to
// pass.
func ParseExpectations(data []byte) (Expectations, error) {
	if hasSecondDocument(data) {
		return Expectations{}, errors.New("parse expectations: more than one YAML document")
	}
	raw, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return Expectations{}, fmt.Errorf("parse expectations: %w", err)
	}
	e, faults := decodeEntries(raw)
	check := func(list string, i int, spec, reason string, earlier int) {
		if strings.TrimSpace(spec) == "" {
			faults = append(faults, fault(list, i, spec, "missing spec"))
		} else if earlier < i {
			faults = append(faults, fault(list, i, spec, fmt.Sprintf("already listed at index %d", earlier)))
		}
		if strings.TrimSpace(reason) == "" {
			faults = append(faults, fault(list, i, spec, "missing reason"))
		}
	}
	for i, x := range e.Failing {
		check("expectations", i, x.Spec, x.Reason,
			slices.IndexFunc(e.Failing, func(o Expectation) bool { return o.Spec == x.Spec }))
		if x.Kind.meaning() == "" {
			faults = append(faults, fault("expectations", i, x.Spec, fmt.Sprintf("unknown kind %q", x.Kind)))
		}
		if problem := checkLink(x); problem != "" {
			faults = append(faults, fault("expectations", i, x.Spec, problem))
		}
	}
	for i, x := range e.Flakes {
		check("flakes", i, x.Spec, x.Reason,
			slices.IndexFunc(e.Flakes, func(o Flake) bool { return o.Spec == x.Spec }))
	}
	if err := errors.Join(faults...); err != nil {
		return Expectations{}, err
	}
	return e, nil
}

// decodeEntries decodes the entries one by one, because the YAML library's strict decoder reports neither index nor spec, and stops at the
// first error.
func decodeEntries(raw []byte) (Expectations, []error) {
	var lists struct {
		Failing []json.RawMessage `json:"expectations"`
		Flakes  []json.RawMessage `json:"flakes"`
	}
	if err := decodeStrict(raw, &lists); err != nil {
		return Expectations{}, []error{fmt.Errorf("parse expectations: %w", err)}
	}
	e := Expectations{Failing: make([]Expectation, len(lists.Failing)), Flakes: make([]Flake, len(lists.Flakes))}
	var faults []error
	for i, x := range lists.Failing {
		if err := decodeStrict(x, &e.Failing[i]); err != nil {
			faults = append(faults, fault("expectations", i, e.Failing[i].Spec, err.Error()))
		}
	}
	for i, x := range lists.Flakes {
		if err := decodeStrict(x, &e.Flakes[i]); err != nil {
			faults = append(faults, fault("flakes", i, e.Flakes[i].Spec, err.Error()))
		}
	}
	return e, faults
}

func decodeStrict(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(into)
}

func fault(list string, i int, spec, problem string) error {
	return fmt.Errorf("parse expectations: %s[%d] %q: %s", list, i, spec, problem)
}

func checkLink(x Expectation) string {
	if x.Link == "" {
		if x.Kind == UserNamespace {
			return "missing link, which kind " + string(UserNamespace) + " requires"
		}
		return ""
	}
	if u, err := url.Parse(x.Link); err != nil || u.Scheme != "https" || u.Host == "" {
		return fmt.Sprintf("link %q is not an https URL", x.Link)
	}
	return ""
}

// hasSecondDocument reports whether data has a second document, which the YAML library would ignore. A line that begins with a document
// marker always starts a document, because YAML forbids it also in quoted text.
func hasSecondDocument(data []byte) bool {
	content := false
	for line := range bytes.Lines(data) {
		line = bytes.TrimRight(line, " \t\r\n")
		marker := bytes.Equal(line, []byte("---")) || bytes.Equal(line, []byte("...")) ||
			bytes.HasPrefix(line, []byte("--- ")) || bytes.HasPrefix(line, []byte("---\t"))
		if marker && content {
			return true
		}
		content = content || (len(line) > 0 && line[0] != '#')
	}
	return false
}
