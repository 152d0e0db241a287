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

// Kind says why a spec is expected to fail.
type Kind string

// The kinds of expectations.
const (
	// UserNamespace: what the spec asks for is impossible in a user namespace.
	UserNamespace Kind = "user-namespace"
	// Image: an image the spec needs cannot be built here.
	Image Kind = "image"
	// HybridCgroup: the spec passes only where the cgroup controllers are delegated.
	HybridCgroup Kind = "hybrid-cgroup"
	// HostKernel: the spec uses a driver that the kernel of some hosts lacks, for root as well. It may pass elsewhere, so an
	// entry of this kind that passes is no fault of the list.
	HostKernel Kind = "host-kernel"
	// Ours: a fault of this project, to be mended.
	Ours Kind = "ours"
)

// meaning is the kind in words, empty for an unknown one.
func (k Kind) meaning() string {
	switch k {
	case UserNamespace:
		return "impossible in a user namespace"
	case Image:
		return "an image it needs cannot be built here"
	case HybridCgroup:
		return "passes only where the cgroup controllers are delegated"
	case HostKernel:
		return "needs a driver that this host's kernel lacks"
	case Ours:
		return "a fault of this project, to be mended"
	}
	return ""
}

// Expectation is a spec known to fail.
type Expectation struct {
	// Spec is the exact full name.
	Spec   string `json:"spec"`
	Kind   Kind   `json:"kind"`
	Reason string `json:"reason"`
	// Link leads to the proof; UserNamespace requires one, as a claim that nobody can mend it.
	Link string `json:"link,omitempty"`
}

// Flake is a spec known to fail now and then.
type Flake struct {
	Spec   string `json:"spec"`
	Reason string `json:"reason"`
}

// Expectations is the list a run is judged by. A spec in both lists is known to fail in one run and pass in the next.
type Expectations struct {
	Failing []Expectation `json:"expectations"`
	Flakes  []Flake       `json:"flakes"`
}

// ParseExpectations reads the YAML of Expectations and returns all its faults together. Nothing in it is valid as well:
// everything is expected to pass.
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
			faults = append(faults, fault(list, i, spec, fmt.Sprintf("listed before, at index %d", earlier)))
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

// decodeEntries decodes one entry after the other: the YAML library's own strict decoder names neither index nor spec,
// and stops at the first fault.
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
		return fmt.Sprintf("link %q is no https URL", x.Link)
	}
	return ""
}

// hasSecondDocument finds what the YAML library would leave unread without a word. A line that begins with a marker is
// one in any context: YAML forbids it even inside of a quoted text.
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
