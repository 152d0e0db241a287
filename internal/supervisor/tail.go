package supervisor

import (
	"bytes"
	"strings"
)

// tailLineBytes is the maximum number of bytes kept of one line.
const tailLineBytes = 1 << 10

// tail keeps the last lines of a stream. It holds at most its number of lines times tailLineBytes and reuses its memory.
type tail struct {
	ring  [][]byte
	next  int      // index for the next complete line
	fresh int      // the number of lines since it was set to 0
	crash []string // lines with crashLines since then
	part  []byte   // the current, incomplete line
	open  bool     // there is an incomplete line
	cut   bool     // the incomplete line was truncated
}

func newTail(lines int) tail { return tail{ring: make([][]byte, max(lines, 1))} }

func (t *tail) add(b []byte) {
	for len(b) > 0 {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		if !t.open {
			t.open = true
			t.fresh++
		}
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

// crashLines begin the output of a Go program that crashes. The stack traces of all goroutines can follow.
var crashLines = [][]byte{[]byte("panic: "), []byte("fatal error: "), []byte("unexpected fault address ")}

// maxCrash is the number of such lines that are kept. They are followed by others of the same crash.
const maxCrash = 4

// push moves the incomplete line to the ring.
func (t *tail) push() {
	for _, begin := range crashLines {
		if bytes.HasPrefix(t.part, begin) && len(t.crash) < maxCrash {
			t.crash = append(t.crash, text(t.part))
		}
	}
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

// lines returns the kept lines, oldest first, including the incomplete one.
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

// text returns b as valid UTF-8 without a trailing carriage return, which some programs write.
func text(b []byte) string {
	return strings.ToValidUTF8(strings.TrimSuffix(string(b), "\r"), "\uFFFD")
}
