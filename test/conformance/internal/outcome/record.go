package outcome

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const recordHeader = "# Outcome of a conformance run, written by a program: state, tab, spec; by name.\n"

// Encode renders a run as a file for git, with one line per spec, sorted by name. Runs with the same results give the same file.
func Encode(run Run) ([]byte, error) {
	var faults []error
	var out bytes.Buffer
	out.WriteString(recordHeader)
	sorted := slices.Clone(run.Specs)
	slices.SortFunc(sorted, func(a, b Spec) int { return cmp.Compare(a.Name, b.Name) })
	for i, s := range sorted {
		switch s.State {
		case Passed, Failed, Skipped:
		default:
			faults = append(faults, fmt.Errorf("encode spec %q: unknown state %q", s.Name, s.State))
		}
		if s.Name == "" {
			faults = append(faults, errors.New("encode spec: no name"))
		} else if i > 0 && sorted[i-1].Name == s.Name {
			faults = append(faults, fmt.Errorf("encode spec %q: more than once in the run", s.Name))
		}
		name := s.Name
		if mustQuote(name) {
			name = strconv.Quote(name)
		}
		fmt.Fprintf(&out, "%s\t%s\n", s.outcome(), name)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Decode parses the output of Encode, which has only names and states. Lines that begin with # and empty lines are ignored.
func Decode(data []byte) (Run, error) {
	var faults []error
	var specs []Spec
	lineOf := map[string]int{}
	for i, line := range strings.Split(string(data), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		s, err := decodeLine(line)
		if err == nil && lineOf[s.Name] > 0 {
			err = fmt.Errorf("spec %q is already on line %d", s.Name, lineOf[s.Name])
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("decode record line %d: %w", i+1, err))
			continue
		}
		lineOf[s.Name] = i + 1
		specs = append(specs, s)
	}
	if err := errors.Join(faults...); err != nil {
		return Run{}, err
	}
	return newRun(specs, 0, func(earlier, _ Spec) Spec { return earlier }), nil
}

func decodeLine(line string) (Spec, error) {
	state, name, found := strings.Cut(line, "\t")
	if !found {
		return Spec{}, errors.New("no tab between state and spec")
	}
	s := Spec{State: State(state)}
	switch s.State {
	case Passed, Failed, Skipped:
	case Flaked:
		s.State, s.Flaked = Passed, true
	default:
		return Spec{}, fmt.Errorf("unknown state %q", state)
	}
	if mustQuote(name) {
		// This also rejects a file with CRLF line endings.
		plain, err := strconv.Unquote(name)
		if err != nil || name[0] != '"' {
			return Spec{}, fmt.Errorf("spec %q is not quoted correctly", name)
		}
		name = plain
	}
	if name == "" {
		return Spec{}, errors.New("no spec")
	}
	s.Name = name
	return s, nil
}

// mustQuote reports whether a name cannot be written in a line of text without quotes. Nearly all names can.
func mustQuote(name string) bool {
	return strings.HasPrefix(name, `"`) || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl)
}

// Change is a spec whose state changed since the last run. From and To may be Flaked, or Absent if only one of the runs has the spec.
type Change struct {
	Spec     string
	From, To State
}

// Diff lists the changes between two runs, sorted by name.
func Diff(last, now Run) []Change {
	before, after := byName(last), byName(now)
	var changes []Change
	for _, s := range now.Specs {
		from := Absent
		if b, found := before[s.Name]; found {
			from = b.outcome()
		}
		if from != s.outcome() {
			changes = append(changes, Change{Spec: s.Name, From: from, To: s.outcome()})
		}
	}
	for _, s := range last.Specs {
		if _, found := after[s.Name]; !found {
			changes = append(changes, Change{Spec: s.Name, From: s.outcome(), To: Absent})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return cmp.Compare(a.Spec, b.Spec) })
	return changes
}
