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

// IDRange is the range of ids from From (inclusive) to To (exclusive).
type IDRange struct{ From, To int64 }

// SubidRange returns the range from which useradd(8) assigns subordinate ids: the intersection of SUB_UID_MIN to SUB_UID_MAX and
// SUB_GID_MIN to SUB_GID_MAX of login.defs(5).
func SubidRange(root string) IDRange {
	r := IDRange{subidsFrom, subidsTo}
	b, _ := os.ReadFile(filepath.Join(root, "/etc/login.defs")) // if it is missing, use the defaults
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

// SubidService returns the source of subordinate ids in nsswitch.conf(5), such as sss, or "" if the files are used. newuidmap(1)
// does not read the files if another source is set.
func SubidService(root string) string {
	b, _ := os.ReadFile(filepath.Join(root, "/etc/nsswitch.conf")) // if it is missing, the files are used
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

// directorySlice is the size of the aligned slices of ids that a directory service assigns to domains: SSSD's default (sssd-ad(5)).
const directorySlice = 200000

// TakenIDs returns the uids and gids that must not become subordinate ids because accounts or groups use them. They are those of
// the files below root, and, if the path of getent(1) is set, those of directory services, each with its whole slice of ids.
// A service may not list all of its accounts. FindTaken queries some ids for that reason.
func TakenIDs(ctx context.Context, root, getent string, own Account) []SubidRow {
	local := map[int64]bool{}
	var rows []SubidRow
	for _, file := range []string{"/etc/passwd", "/etc/group"} {
		b, _ := os.ReadFile(filepath.Join(root, file)) // a missing file has no ids
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

// FindTaken queries the name service for ids spread over a range, and returns the slices of the ids that an account or a group
// uses.
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
	if id < directorySlice { // not of a domain, but for example of systemd
		return SubidRow{Start: id, Count: 1, Where: "the name service"}
	}
	return SubidRow{Start: id - id%directorySlice, Count: directorySlice, Where: fmt.Sprintf("the directory service's id %d", id)}
}

// query returns the ids that getent(1) prints. It returns none after a timeout.
func query(ctx context.Context, getent, database string, keys ...string) []int64 {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	out, _ := exec.CommandContext(ctx, getent, append([]string{database}, keys...)...).Output() // exit code 2: a key was not found
	return idsOf(out)
}

// idsOf returns the third field of each row, which is the uid in passwd(5) and the gid in group(5).
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
