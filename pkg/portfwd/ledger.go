package portfwd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// ledgerSlack is the number of lines beyond twice the number of entries after which the file is rewritten.
const ledgerSlack = 1024

// ledger records which forwards belong to this Forwarder, because RootlessKit does not record owners. It is a file of lines:
//
//	+SPEC         a forward that is about to be requested
//	-SPEC         a forward that does not exist any more
//	=PORT OWNER   a picked port
//	*SPEC         a foreign forward
//	@PLACE OWNER  the Service or pod that holds a place on the host
//	!PLACE        the place has no holder
//
// Holders outlive the forwards, so that each owner gets its ports again after a restart. A "+" line is written before the
// request, so that the record is complete whenever the process is killed. The file needs no fsync, because a crash of the
// host ends the forwards too. The first line, "#format N", is the version of the file.
type ledger struct {
	path string // if empty, the ledger is in memory only

	mu sync.Mutex
	ledgerEntries
	file  *os.File
	lines int
}

type ledgerEntries struct {
	specs   map[string]struct{}
	picks   map[string]int
	foreign map[string]struct{}
	holders map[Bind]Owner
}

func newLedgerEntries() ledgerEntries {
	return ledgerEntries{specs: map[string]struct{}{}, picks: map[string]int{}, foreign: map[string]struct{}{}, holders: map[Bind]Owner{}}
}

// specKey returns the ledger's notation of a spec. Specs that RootlessKit treats as equal have equal keys.
func specKey(s port.Spec) string {
	return fmt.Sprintf("%s %s %d %s %d", s.Proto, s.ParentIP, s.ParentPort, s.ChildIP, s.ChildPort)
}

// openLedger reads the file, if it exists, and prepares it for appending.
func openLedger(path string) (*ledger, error) {
	l := &ledger{path: path, ledgerEntries: newLedgerEntries()}
	if path == "" {
		return l, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read port ledger: %w", err)
	}
	l.ledgerEntries = parseLedger(raw)
	if err := l.rewrite(); err != nil {
		return nil, err
	}
	return l, nil
}

// parseLedger never fails. An incomplete last line can be ignored: the process was killed before the request.
func parseLedger(raw []byte) ledgerEntries {
	e := newLedgerEntries()
	for line := range strings.Lines(string(raw)) {
		line, whole := strings.CutSuffix(line, "\n")
		if !whole || len(line) < 2 {
			continue
		}
		switch line[0] {
		case '+':
			e.specs[line[1:]] = struct{}{}
		case '-':
			delete(e.specs, line[1:])
		case '*':
			e.foreign[line[1:]] = struct{}{}
		case '@':
			if b, o, ok := parseHolder(line[1:]); ok {
				e.holders[b] = o
			}
		case '!':
			if b, ok := parseBind(line[1:]); ok {
				delete(e.holders, b)
			}
		case '=':
			number, owner, _ := strings.Cut(line[1:], " ")
			if p, err := strconv.Atoi(number); err == nil && validPort(p) && owner != "" {
				e.picks[owner] = p
			}
		}
	}
	return e
}

// parseSpecKey is the inverse of specKey.
func parseSpecKey(key string) (port.Spec, bool) {
	const fields = 5
	f := strings.Split(key, " ")
	if len(f) != fields {
		return port.Spec{}, false
	}
	parent, errParent := strconv.Atoi(f[2])
	child, errChild := strconv.Atoi(f[4])
	s := port.Spec{Proto: f[0], ParentIP: f[1], ParentPort: parent, ChildIP: f[3], ChildPort: child}
	return s, errParent == nil && errChild == nil && validPort(parent) && validPort(child)
}

// bindKey and holderLine return the ledger's notation of a place and its holder. Names are escaped, although names in
// Kubernetes do not need it.
func bindKey(b Bind) string { return fmt.Sprintf("%s %s %d", b.Proto, b.IP, b.Port) }

func holderLine(b Bind, o Owner) string {
	line := "@" + bindKey(b)
	for _, field := range []string{o.Kind, o.Namespace, o.Name, o.UID} {
		line += " " + url.PathEscape(field)
	}
	return line
}

func parseBind(key string) (Bind, bool) {
	f := strings.Split(key, " ")
	if len(f) != 3 {
		return Bind{}, false
	}
	ip, err := netip.ParseAddr(f[1])
	p, errPort := strconv.Atoi(f[2])
	return Bind{Proto: f[0], IP: ip, Port: p}, err == nil && errPort == nil && validPort(p)
}

func parseHolder(line string) (b Bind, o Owner, ok bool) {
	const fields = 7
	f := strings.Split(line, " ")
	if len(f) != fields {
		return b, o, false
	}
	b, ok = parseBind(strings.Join(f[:3], " "))
	for i, into := range []*string{&o.Kind, &o.Namespace, &o.Name, &o.UID} {
		text, err := url.PathUnescape(f[3+i])
		*into, ok = text, ok && err == nil
	}
	return b, o, ok
}

// holding returns the holders of places. Only the caller changes them; it must not keep the map.
func (l *ledger) holding() map[Bind]Owner { return l.holders }

// hold records the holder of a place. The zero Owner means no Service or pod.
func (l *ledger) hold(b Bind, o Owner) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holders[b] == o {
		return nil
	}
	if o == (Owner{}) {
		delete(l.holders, b)
		return l.append("!" + bindKey(b))
	}
	l.holders[b] = o
	return l.append(holderLine(b, o))
}

// others returns the keys of foreign forwards.
func (l *ledger) others() map[string]struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.foreign)
}

// setOthers replaces the keys of foreign forwards.
func (l *ledger) setOthers(keys map[string]struct{}) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if maps.Equal(l.foreign, keys) {
		return nil
	}
	l.foreign = keys
	if l.path == "" {
		return nil
	}
	return l.rewrite()
}

func (l *ledger) picked(owner string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.picks[owner]
}

// pick records the port that was picked for an owner. The owner's name must not contain a line break.
func (l *ledger) pick(owner string, p int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.picks[owner] == p {
		return nil
	}
	l.picks[owner] = p
	return l.write("=" + strconv.Itoa(p) + " " + owner)
}

// write appends a line.
func (l *ledger) write(line string) error {
	if l.path == "" {
		return nil
	}
	if l.file == nil {
		return errors.New("write port ledger: closed")
	}
	if _, err := l.file.WriteString(line + "\n"); err != nil {
		return fmt.Errorf("write port ledger: %w", err)
	}
	l.lines++
	return nil
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
	if err := l.write(string(sign) + key); err != nil {
		return err
	}
	if sign == '+' {
		l.specs[key] = struct{}{}
	} else {
		delete(l.specs, key)
	}
	return l.compact()
}

// append writes a line for a change that was already made in memory.
func (l *ledger) append(line string) error {
	if err := l.write(line); err != nil {
		return err
	}
	return l.compact()
}

// compact rewrites the file when most of its lines are outdated.
func (l *ledger) compact() error {
	if l.path != "" && l.lines > 2*l.size()+ledgerSlack {
		return l.rewrite()
	}
	return nil
}

func (e *ledgerEntries) size() int {
	return len(e.specs) + len(e.picks) + len(e.foreign) + len(e.holders)
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

// rewrite replaces the file with one that has only the current entries.
func (l *ledger) rewrite() error {
	keys := sortedKeys(l.specs)
	var buf bytes.Buffer
	if err := layout.WriteFormat(&buf); err != nil {
		return err
	}
	for _, owner := range sortedKeys(l.picks) {
		fmt.Fprintf(&buf, "=%d %s\n", l.picks[owner], owner)
	}
	for _, k := range sortedKeys(l.foreign) {
		buf.WriteString("*" + k + "\n")
	}
	var holders []string
	for b, o := range l.holders {
		holders = append(holders, holderLine(b, o)+"\n")
	}
	slices.Sort(holders)
	buf.WriteString(strings.Join(holders, ""))
	for _, k := range keys {
		buf.WriteString("+" + k + "\n")
	}
	if err := atomicfile.Write(l.path, buf.Bytes(), 0o600); err != nil {
		return fmt.Errorf("write port ledger: %w", err)
	}
	if l.file != nil {
		l.file.Close() // of the replaced file
	}
	var err error
	if l.file, err = os.OpenFile(l.path, os.O_APPEND|os.O_WRONLY, 0); err != nil {
		return fmt.Errorf("write port ledger: %w", err)
	}
	l.lines = l.size()
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
