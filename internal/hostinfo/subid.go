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

// BadSubid is a row of subuid(5) or subgid(5) that cannot be used.
type BadSubid struct {
	// Where is the location of the row, Text the row, and Owner its first field.
	Where, Text, Owner string
	// Reason is why it cannot be used, as a predicate.
	Reason string
	// Blanks is set if the row is valid except for blanks at its ends, such as those of CRLF line ends.
	Blanks bool
	// Blocks is set if RootlessKit stops at the row, regardless of its owner.
	Blocks bool
}

// BelongsTo reports whether the owner of the row is the account a.
func (r BadSubid) BelongsTo(a Account) bool { return SubidRow{Owner: r.Owner}.BelongsTo(a) }

// String returns the location, the row and the reason.
func (r BadSubid) String() string { return fmt.Sprintf("%s (%s) %s", r.Where, r.Text, r.Reason) }

// ReadSubids returns the rows of file, which is SubuidFile or SubgidFile. A missing file has no rows. bad lists the rows that RootlessKit
// or newuidmap(1) cannot use.
func ReadSubids(root, file string) (rows []SubidRow, bad []BadSubid, err error) {
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

// ParseSubids is like ReadSubids, for the text of a file. It accepts the rows that both RootlessKit (pkg/parent/idtools) and newuidmap
// (shadow, lib/subordinateio.c) accept: RootlessKit ignores blanks at the ends of a row, newuidmap does not. Such a row is in both lists,
// because its ids are not free. Pure.
func ParseSubids(b []byte, file string) (rows []SubidRow, bad []BadSubid) {
	n := 0
	for line := range bytes.Lines(b) {
		n++
		raw := strings.TrimSuffix(string(line), "\n")
		text, where := strings.TrimSpace(raw), fmt.Sprintf("%s line %d", file, n)
		if text == "" || text[0] == '#' {
			continue
		}
		f := strings.Split(text, ":")
		fault := BadSubid{Where: where, Text: text, Owner: f[0]}
		if len(f) != 3 {
			fault.Reason, fault.Blocks = "is not NAME:START:COUNT", true
			bad = append(bad, fault)
			continue
		}
		row, reason := newRow(f[0], f[1], f[2], where)
		if reason == "" {
			rows = append(rows, row)
		}
		if reason == "" && raw != text {
			reason, fault.Blanks = blanks(raw), true
		}
		if fault.Reason = reason; reason != "" {
			bad = append(bad, fault)
		}
	}
	return rows, bad
}

// blanks describes the blanks at the ends of a row.
func blanks(raw string) string {
	if strings.HasSuffix(raw, "\r") {
		return "ends with a carriage return (CRLF line ends), which newuidmap does not accept"
	}
	return "has blanks at its beginning or end, which newuidmap does not accept"
}

// ParseGetsubids parses the output of getsubids(1), with lines such as "0: name 100000 65536". Pure.
func ParseGetsubids(b []byte, where string) []SubidRow {
	var rows []SubidRow
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) < 4 || !strings.HasSuffix(f[0], ":") {
			continue
		}
		f = []string{f[0], strings.Join(f[1:len(f)-2], " "), f[len(f)-2], f[len(f)-1]} // a name may have blanks
		if row, reason := newRow(f[1], f[2], f[3], where+" row "+strings.TrimSuffix(f[0], ":")); reason == "" {
			rows = append(rows, row)
		}
	}
	return rows
}

// maxID is the highest valid id of the kernel. (uid_t)-1 is not valid.
const maxID = 1<<32 - 2

// newRow returns a row, or the reason why it is invalid.
func newRow(owner, start, count, where string) (row SubidRow, reason string) {
	s, err1 := strconv.ParseUint(start, 10, 63)
	c, err2 := strconv.ParseUint(count, 10, 63)
	switch {
	case owner == "":
		return SubidRow{}, "has no owner"
	case err1 != nil || err2 != nil:
		return SubidRow{}, "is not NAME:START:COUNT with decimal numbers"
	case c == 0:
		return SubidRow{}, "has a count of 0"
	case s > maxID || c > maxID+1 || s+c > maxID+1:
		return SubidRow{}, fmt.Sprintf("has ids above %d, the highest id of the kernel", int64(maxID))
	}
	return SubidRow{Owner: owner, Start: int64(s), Count: int64(c), Where: where}, ""
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
