package supervisor

import (
	"bytes"
	"strings"
)

// tailLineBytes is how much of one line is remembered.
const tailLineBytes = 1 << 10

// tail remembers the last lines of a stream. It never holds more than its number of lines times tailLineBytes, and
// uses its memory again.
type tail struct {
	ring [][]byte
	next int    // where the next whole line goes
	part []byte // a line that has not ended
	open bool   // there is such a line
	cut  bool   // some of it was left out
}

func newTail(lines int) tail { return tail{ring: make([][]byte, max(lines, 1))} }

func (t *tail) add(b []byte) {
	for len(b) > 0 {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		t.open = true
		if room := tailLineBytes - len(t.part); len(line) > room {
			line, t.cut = line[:room], true
		}
		t.part = append(t.part, line...)
		if whole {
			t.push()
		}
		b = rest
	}
}

// push makes the part a whole line.
func (t *tail) push() {
	slot := append(t.ring[t.next][:0], t.part...)
	if t.cut {
		slot = append(slot, "…"...)
	}
	if slot == nil {
		slot = []byte{} // An empty line, not an empty slot.
	}
	t.ring[t.next] = slot
	t.next = (t.next + 1) % len(t.ring)
	t.part, t.open, t.cut = t.part[:0], false, false
}

// lines returns what is remembered, oldest first, the line that has not ended included.
func (t *tail) lines() []string {
	var all []string
	for i := range t.ring {
		if line := t.ring[(t.next+i)%len(t.ring)]; line != nil {
			all = append(all, text(line))
		}
	}
	if t.open {
		all = append(all, text(t.part))
	}
	return all[max(len(all)-len(t.ring), 0):]
}

// text makes b printable on a line of its own: some programs end their lines with a carriage return.
func text(b []byte) string {
	return strings.ToValidUTF8(strings.TrimSuffix(string(b), "\r"), "\uFFFD")
}
