package hostinfo

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// IDRange are the ids from From up to and without To.
type IDRange struct{ From, To int64 }

// SubidRange returns the ids of which useradd(8) makes subordinate ones: SUB_UID_MIN to SUB_UID_MAX and SUB_GID_MIN to
// SUB_GID_MAX of login.defs(5), as far as both have them.
func SubidRange(root string) IDRange {
	r := IDRange{subidsFrom, subidsTo}
	b, _ := os.ReadFile(filepath.Join(root, "/etc/login.defs")) // without it these are the defaults
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) != 2 {
			continue
		}
		n, err := strconv.ParseInt(f[1], 0, 64)
		if err != nil || n < 0 || n > maxID {
			continue
		}
		switch f[0] {
		case "SUB_UID_MIN", "SUB_GID_MIN":
			r.From = max(r.From, n)
		case "SUB_UID_MAX", "SUB_GID_MAX":
			r.To = min(r.To, n+1)
		}
	}
	return r
}

// SubidService returns the source of subordinate ids that nsswitch.conf(5) names in the place of the files, such as sss; empty
// for the files. newuidmap(1) reads no file then.
func SubidService(root string) string {
	b, _ := os.ReadFile(filepath.Join(root, "/etc/nsswitch.conf")) // without it the files count
	for line := range bytes.Lines(b) {
		text, _, _ := strings.Cut(string(line), "#")
		if rest, ok := strings.CutPrefix(strings.TrimSpace(text), "subid:"); ok {
			if f := strings.Fields(rest); len(f) > 0 && f[0] != "files" {
				return f[0]
			}
		}
	}
	return ""
}

// directorySlice is how many ids a directory service gives to a domain at once, aligned: SSSD's default (sssd-ad(5)).
const directorySlice = 200000

// TakenIDs returns the uids and gids that must not become subordinate ones, because accounts and groups have them: those of
// the files below root, and through getent(1), if its path is given, those of directory services, each with the slice of ids
// that it belongs to. A service need not list its accounts; FindTaken asks it about some ids.
func TakenIDs(ctx context.Context, root, getent string, own Account) []SubidRow {
	local := map[int64]bool{}
	var rows []SubidRow
	for _, file := range []string{"/etc/passwd", "/etc/group"} {
		b, _ := os.ReadFile(filepath.Join(root, file)) // a host without accounts has none to respect
		for _, id := range idsOf(b) {
			local[id] = true
			rows = append(rows, SubidRow{Start: id, Count: 1, Where: file})
		}
	}
	var found []int64
	if !local[int64(own.UID)] {
		found = append(found, int64(own.UID), int64(own.GID))
	}
	if getent != "" {
		for _, database := range []string{"passwd", "group"} {
			found = append(found, query(ctx, getent, database)...)
		}
	}
	for _, id := range found {
		if !local[id] && id > 0 {
			rows = append(rows, sliceOf(id))
		}
	}
	return rows
}

// FindTaken asks the name service about ids spread over a range, and returns the slices of those that an account or a group
// has.
func FindTaken(ctx context.Context, getent string, r SubidRow) []SubidRow {
	const (
		start = 16
		step  = 512
	)
	var keys []string
	for id := r.Start; id < r.End(); id++ {
		if id < r.Start+start || (id-r.Start)%step == 0 {
			keys = append(keys, strconv.FormatInt(id, 10))
		}
		if len(keys) > 1024 {
			break
		}
	}
	var rows []SubidRow
	for _, database := range []string{"passwd", "group"} {
		for _, id := range query(ctx, getent, database, keys...) {
			rows = append(rows, sliceOf(id))
		}
	}
	return rows
}

func sliceOf(id int64) SubidRow {
	if id < directorySlice { // no domain's: systemd, for one, answers for ids of its own
		return SubidRow{Start: id, Count: 1, Where: "the name service"}
	}
	return SubidRow{Start: id - id%directorySlice, Count: directorySlice, Where: fmt.Sprintf("the directory service's id %d", id)}
}

// query returns the ids that getent(1) prints. A service that does not answer in time has none.
func query(ctx context.Context, getent, database string, keys ...string) []int64 {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	out, _ := exec.CommandContext(ctx, getent, append([]string{database}, keys...)...).Output() // exit 2: one is not known
	return idsOf(out)
}

// idsOf returns the third field of each row, in passwd(5) the uid and in group(5) the gid.
func idsOf(b []byte) []int64 {
	var ids []int64
	for line := range bytes.Lines(b) {
		f := strings.Split(string(line), ":")
		if len(f) < 4 {
			continue
		}
		if id, err := strconv.ParseUint(f[2], 10, 32); err == nil {
			ids = append(ids, int64(id))
		}
	}
	return ids
}
