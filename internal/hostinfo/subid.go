package hostinfo

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MinSubids is the number of subordinate ids of each kind that a node needs, which is the usual range of ids in an image.
const MinSubids = 65536

// The files of subuid(5) and subgid(5).
const (
	SubuidFile = "/etc/subuid"
	SubgidFile = "/etc/subgid"
)

// SubidRow is one row of subuid(5) or subgid(5), or of getsubids(1).
type SubidRow struct {
	// Owner is a name or a uid in digits.
	Owner        string
	Start, Count int64
	// Where is the location of the row for messages: "/etc/subuid line 3".
	Where string
}

// End returns the first id after the range.
func (r SubidRow) End() int64 { return r.Start + r.Count }

// Overlaps reports whether two rows have ids in common.
func (r SubidRow) Overlaps(o SubidRow) bool { return r.Start < o.End() && o.Start < r.End() }

// BelongsTo reports whether the owner of the row is the account a.
func (r SubidRow) BelongsTo(a Account) bool {
	return r.Owner == a.Name || r.Owner == strconv.Itoa(a.UID)
}

// String returns the row in the format of the file.
func (r SubidRow) String() string { return fmt.Sprintf("%s:%d:%d", r.Owner, r.Start, r.Count) }

// ReadSubids returns the rows of file, which is SubuidFile or SubgidFile. A missing file has no rows. bad lists the locations of
// invalid rows of any account, because RootlessKit fails if the file contains one.
func ReadSubids(root, file string) (rows []SubidRow, bad []string, err error) {
	b, err := os.ReadFile(filepath.Join(root, file))
	if os.IsNotExist(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	rows, bad = ParseSubids(b, file)
	return rows, bad, nil
}

// ParseSubids is like ReadSubids, for the text of a file. Pure.
func ParseSubids(b []byte, file string) (rows []SubidRow, bad []string) {
	n := 0
	for line := range bytes.Lines(b) {
		n++
		text, where := strings.TrimSpace(string(line)), fmt.Sprintf("%s line %d", file, n)
		if text == "" || text[0] == '#' {
			continue
		}
		f := strings.Split(text, ":")
		if len(f) != 3 {
			bad = append(bad, where)
			continue
		}
		row, ok := newRow(f[0], f[1], f[2], where)
		if !ok {
			bad = append(bad, where)
			continue
		}
		rows = append(rows, row)
	}
	return rows, bad
}

// ParseGetsubids parses the output of getsubids(1), with lines such as "0: name 100000 65536". Pure.
func ParseGetsubids(b []byte, where string) []SubidRow {
	var rows []SubidRow
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) != 4 || !strings.HasSuffix(f[0], ":") {
			continue
		}
		if row, ok := newRow(f[1], f[2], f[3], where+" row "+strings.TrimSuffix(f[0], ":")); ok {
			rows = append(rows, row)
		}
	}
	return rows
}

// maxID is the highest valid id of the kernel. (uid_t)-1 is not valid.
const maxID = 1<<32 - 2

func newRow(owner, start, count, where string) (SubidRow, bool) {
	s, err1 := strconv.ParseUint(start, 10, 32)
	c, err2 := strconv.ParseUint(count, 10, 32)
	if owner == "" || err1 != nil || err2 != nil || s+c > maxID+1 {
		return SubidRow{}, false
	}
	return SubidRow{Owner: owner, Start: int64(s), Count: int64(c), Where: where}, true
}

// The default range from which useradd(8) assigns subordinate ids. login.defs(5) may set another.
const (
	subidsFrom = 100000
	subidsTo   = 600100000
)

// FreeSubids returns the start of the first range of count ids, within the given range, that overlaps none of rows. Like useradd, it
// continues after each overlapping row. It returns -1 if there is no such range. Pure.
func FreeSubids(rows []SubidRow, count int64, within IDRange) int64 {
	candidate := SubidRow{Start: within.From, Count: count}
	for moved := true; moved; {
		moved = false
		for _, r := range rows {
			if candidate.Overlaps(r) {
				candidate.Start, moved = r.End(), true
			}
		}
	}
	if candidate.End() > within.To {
		return -1
	}
	return candidate.Start
}
