package portfwd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
)

// ledgerSlack is how many lines beyond twice the entries the file may have before it is written anew.
const ledgerSlack = 1024

// ledger remembers which forwards are ours: RootlessKit itself keeps no owner. It is a file of lines, "+SPEC" for one
// that is about to be asked for and "-SPEC" for one that is no longer there; a line is written before the request it
// stands for, so that a forward of ours is in the file at every moment at which we can be killed. It needs no fsync: a
// crash of the host takes the forwards with it.
type ledger struct {
	path string // empty: in memory only

	mu    sync.Mutex
	specs map[string]struct{}
	file  *os.File
	lines int
}

// specKey is how a spec is written in the ledger. Specs that RootlessKit treats alike are equal.
func specKey(s port.Spec) string {
	return fmt.Sprintf("%s %s %d %s %d", s.Proto, s.ParentIP, s.ParentPort, s.ChildIP, s.ChildPort)
}

// openLedger reads the file, if there is one, and makes it fit for appending.
func openLedger(path string) (*ledger, error) {
	l := &ledger{path: path, specs: map[string]struct{}{}}
	if path == "" {
		return l, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read port ledger: %w", err)
	}
	l.specs = parseLedger(raw)
	if err := l.rewrite(); err != nil {
		return nil, err
	}
	return l, nil
}

// parseLedger never fails: a last line cut short by a kill was never followed by its request.
func parseLedger(raw []byte) map[string]struct{} {
	specs := map[string]struct{}{}
	for line := range strings.Lines(string(raw)) {
		line, whole := strings.CutSuffix(line, "\n")
		if !whole || len(line) < 2 {
			continue
		}
		switch line[0] {
		case '+':
			specs[line[1:]] = struct{}{}
		case '-':
			delete(specs, line[1:])
		}
	}
	return specs
}

func (l *ledger) has(s port.Spec) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.specs[specKey(s)]
	return ok
}

func (l *ledger) add(s port.Spec) error { return l.note('+', s) }

func (l *ledger) remove(s port.Spec) error { return l.note('-', s) }

func (l *ledger) note(sign byte, s port.Spec) error {
	key := specKey(s)
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.specs[key]; ok == (sign == '+') {
		return nil
	}
	if l.path != "" {
		if l.file == nil {
			return errors.New("write port ledger: closed")
		}
		if _, err := l.file.WriteString(string(sign) + key + "\n"); err != nil {
			return fmt.Errorf("write port ledger: %w", err)
		}
		l.lines++
	}
	if sign == '+' {
		l.specs[key] = struct{}{}
	} else {
		delete(l.specs, key)
	}
	if l.path != "" && l.lines > 2*len(l.specs)+ledgerSlack {
		return l.rewrite()
	}
	return nil
}

// keep drops every entry that is not in live.
func (l *ledger) keep(live map[string]struct{}) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := len(l.specs)
	for key := range l.specs {
		if _, ok := live[key]; !ok {
			delete(l.specs, key)
		}
	}
	if l.path == "" || len(l.specs) == before {
		return nil
	}
	return l.rewrite()
}

// rewrite replaces the file by one with the present entries only.
func (l *ledger) rewrite() error {
	keys := make([]string, 0, len(l.specs))
	for k := range l.specs {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var buf bytes.Buffer
	for _, k := range keys {
		buf.WriteString("+" + k + "\n")
	}
	next := l.path + ".new"
	f, err := os.OpenFile(next, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write port ledger: %w", err)
	}
	if _, err = buf.WriteTo(f); err == nil {
		err = os.Rename(next, l.path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write port ledger: %w", err), f.Close(), os.Remove(next))
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file, l.lines = f, len(keys)
	return nil
}

func (l *ledger) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}
