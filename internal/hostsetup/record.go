package hostsetup

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// RecordDir contains one record for each account for which the host was set up.
const RecordDir = "/var/lib/rootlessnode-host"

// entry contains the changes of one step.
type entry struct {
	// Files are the files that the step wrote, with their text, so that undo does not remove a file that was changed since.
	Files map[string]string `json:"files,omitempty"`
	// Rows are the lines that the step added, by file.
	Rows map[string][]string `json:"rows,omitempty"`
	// Before and After are the previous and the new values of settings, such as sysctls and the mode of a device.
	Before map[string]string `json:"before,omitempty"`
	After  map[string]string `json:"after,omitempty"`
}

// record contains the changes for one account.
type record struct {
	User  string           `json:"user"`
	UID   int              `json:"uid,omitempty"`
	Steps map[string]entry `json:"steps"`

	env *env
}

func recordPath(e *env, user string) string { return e.path(filepath.Join(RecordDir, user+".json")) }

func readRecord(e *env) (*record, error) {
	r := &record{User: e.User, Steps: map[string]entry{}, env: e}
	b, err := os.ReadFile(recordPath(e, e.User))
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(b, r)
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of host setup: %w", err)
	}
	if r.Steps == nil {
		r.Steps = map[string]entry{}
	}
	return r, nil
}

func (r *record) has(step string) bool { _, ok := r.Steps[step]; return ok }

// forget drops a step's entry.
func (r *record) forget(step string) { delete(r.Steps, step) }

// add merges the changes of a step into the entry of earlier runs. Values in Before of earlier runs are kept.
func (r *record) add(step string, did entry) {
	e := r.Steps[step]
	merge := func(into *map[string]string, from map[string]string, keep bool) {
		for k, v := range from {
			if *into == nil {
				*into = map[string]string{}
			}
			if _, ok := (*into)[k]; !ok || !keep {
				(*into)[k] = v
			}
		}
	}
	merge(&e.Files, did.Files, false)
	merge(&e.Before, did.Before, true)
	merge(&e.After, did.After, false)
	for file, rows := range did.Rows {
		if e.Rows == nil {
			e.Rows = map[string][]string{}
		}
		e.Rows[file] = append(e.Rows[file], rows...)
	}
	r.Steps[step] = e
}

// save writes the record, or removes it if it has no steps.
func (r *record) save() error {
	path := recordPath(r.env, r.User)
	if len(r.Steps) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		_ = os.Remove(filepath.Dir(path)) // if it was the last record
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return durable.Write(path, append(b, '\n'), 0o644)
}

// usedByOthers reports whether another account's record of the same step contains file.
func (r *record) usedByOthers(step, file string) bool {
	others, _ := filepath.Glob(r.env.path(filepath.Join(RecordDir, "*.json")))
	for _, path := range others {
		var o record
		b, err := os.ReadFile(path)
		if path == recordPath(r.env, r.User) || err != nil || json.Unmarshal(b, &o) != nil {
			continue
		}
		if _, ok := o.Steps[step].Files[file]; ok {
			return true
		}
		if _, ok := o.Steps[step].After[file]; ok {
			return true
		}
	}
	return false
}

// durable are the options for files in /etc and the records of changes.
var durable = atomicfile.Options{Durable: true}

// putFile writes a file and creates its directory if needed.
func (e *env) putFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(e.path(path)), 0o755); err != nil {
		return err
	}
	return durable.Write(e.path(path), []byte(text), 0o644)
}

// fileIs reports whether the content of path is text.
func (e *env) fileIs(path, text string) bool {
	b, err := os.ReadFile(e.path(path))
	return err == nil && string(b) == text
}

// putCommands returns shell commands with the effect of putFile.
func putCommands(path, text string) []string {
	lines := []string{"mkdir -p " + hostinfo.Quote(filepath.Dir(path)), "cat > " + hostinfo.Quote(path) + " <<'EOF'"}
	lines = append(lines, strings.Split(strings.TrimSuffix(text, "\n"), "\n")...)
	return append(lines, "EOF")
}

// removeFiles removes the files of a step that were not changed since and that no other account uses.
func (p *Plan) removeFiles(step string) (removed bool, err error) {
	var faults []error
	for path, text := range p.record.Steps[step].Files {
		switch {
		case p.record.usedByOthers(step, path), !p.env.exists(path):
			continue
		case !p.env.fileIs(path, text):
			faults = append(faults, fmt.Errorf("%s was changed since host setup: not removed", path))
			continue
		}
		if err := os.Remove(p.env.path(path)); err != nil {
			faults = append(faults, err)
			continue
		}
		removed = true
	}
	return removed, errors.Join(faults...)
}

// removeRows removes the lines that host setup added to a file. It ignores lines that do not exist any more.
func (e *env) removeRows(path string, rows []string) error {
	b, err := os.ReadFile(e.path(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var keep strings.Builder
	for line := range strings.Lines(string(b)) {
		if !slices.Contains(rows, strings.TrimRight(line, "\n")) {
			keep.WriteString(line)
		}
	}
	if keep.Len() == len(b) {
		return nil
	}
	return replaceText(e.path(path), []byte(keep.String()))
}
