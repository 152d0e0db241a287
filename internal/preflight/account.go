package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

func checkAccount(_ context.Context, h *host) []Finding {
	a, ok, err := h.account()
	switch {
	case err != nil:
		return unreadable(err)
	case !ok:
		return []Finding{fail("uid %d has no entry in passwd", h.in.UID).hint(
			"# newuidmap looks up the account by name: run as an account that `getent passwd` lists,",
			"# or create one:",
			"getent passwd rootlessnode >/dev/null || "+asRoot("useradd --create-home --uid "+strconv.Itoa(h.in.UID)+" rootlessnode"))}
	}
	return []Finding{pass("account %s, uid %d", a.Name, a.UID).with(map[string]string{"user": a.Name, "uid": strconv.Itoa(a.UID)})}
}

// subidKind is one of the two kinds of subordinate ids: uids or gids.
type subidKind struct {
	word, file, usermod string
	getsubids           []string
}

func subidKinds() []subidKind {
	return []subidKind{
		{"subuid", hostinfo.SubuidFile, "--add-subuids", nil},
		{"subgid", hostinfo.SubgidFile, "--add-subgids", []string{"-g"}},
	}
}

func checkSubids(ctx context.Context, h *host) []Finding {
	a, ok, err := h.account()
	if err != nil || !ok {
		return []Finding{warn("not checked: the account is unknown")}
	}
	var found []Finding
	var missing []subidKind
	details := map[string]string{}
	for _, kind := range subidKinds() {
		mine, findings, err := subidsOf(ctx, h, a, kind)
		found = append(found, findings...)
		switch {
		case err != nil:
			found = append(found, fail("%s cannot be read: %v", kind.file, errors.Unwrap(err)).hint(asRoot("chmod 0644 "+kind.file)))
			continue
		case len(mine) == 0:
			missing = append(missing, kind)
			continue
		}
		details[kind.word] = rowsText(mine)
		found = append(found, validateRows(ctx, h, a, kind, mine)...)
	}
	if len(missing) > 0 {
		found = append([]Finding{missingSubids(ctx, h, a, missing)}, found...)
	}
	return orPass(found, "subordinate ids: uids %s, gids %s", details["subuid"], details["subgid"])
}

// missingSubidKinds returns the kinds of subordinate ids of which the account has none.
func missingSubidKinds(ctx context.Context, h *host) []subidKind {
	a, ok, err := h.account()
	if err != nil || !ok {
		return nil
	}
	var without []subidKind
	for _, kind := range subidKinds() {
		if mine, wrong, err := subidsOf(ctx, h, a, kind); err == nil && len(mine) == 0 && len(wrong) == 0 {
			without = append(without, kind)
		}
	}
	return without
}

// missingSubids returns one finding for all kinds, with a hint to add rows that overlap no existing row.
func missingSubids(ctx context.Context, h *host, a hostinfo.Account, kinds []subidKind) Finding {
	var files []string
	var f Finding
	start := freeSubids(ctx, h, a)
	for _, k := range kinds {
		files = append(files, k.file)
	}
	text := strings.Join(files, " and ")
	f.Level = LevelFail
	f.Message = fmt.Sprintf("%s (uid %d) has no subordinate ids: no row in %s", a.Name, a.UID, text)
	if _, err := datadir.ReadRecord(h.in.Data, h.in.UID); err == nil {
		return f // check data-ids reports the ids that the account must have
	}
	for _, k := range kinds {
		f.fix.add(asRoot(fmt.Sprintf("usermod %s %d-%d %s", k.usermod, start, start+hostinfo.MinSubids-1, hostinfo.Quote(a.Name))))
	}
	f.fix.add(fmt.Sprintf("# or add this row to %s: %s:%d:%d", text, a.Name, start, hostinfo.MinSubids))
	f.fix.setup = true
	f.Details = map[string]string{"user": a.Name, "files": strings.Join(files, ","), "row": fmt.Sprintf("%s:%d:%d", a.Name, start, hostinfo.MinSubids)}
	return f
}

// freeSubids returns the start of a range that overlaps no row of either file and no account.
func freeSubids(ctx context.Context, h *host, a hostinfo.Account) int64 {
	var all []hostinfo.SubidRow
	for _, k := range subidKinds() {
		rows, _, _ := hostinfo.ReadSubids(h.in.Root, k.file)
		all = append(all, rows...)
	}
	all = append(all, hostinfo.TakenIDs(ctx, h.in.Root, h.lookPath("getent"), a)...)
	return hostinfo.FreeSubids(all, hostinfo.MinSubids, hostinfo.SubidRange(h.in.Root))
}

// subidsOf returns the rows of the account from getsubids, or else from the file, as RootlessKit does. subids.source can
// restrict it to one of them.
func subidsOf(ctx context.Context, h *host, a hostinfo.Account, kind subidKind) (mine []hostinfo.SubidRow, found []Finding, err error) {
	source := h.cfg.Subids.Source
	if source != "static" {
		if rows := getsubids(ctx, h, a, kind); len(rows) > 0 || source == "dynamic" {
			return rows, nil, nil
		}
	}
	all, bad, err := hostinfo.ReadSubids(h.in.Root, kind.file)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range all {
		if r.BelongsTo(a) {
			mine = append(mine, r)
		}
	}
	for _, r := range bad {
		switch {
		case !r.Blocks && !r.BelongsTo(a):
		case r.Blanks:
			found = append(found, fail("%v", r).hint(asRoot(`sed -i 's/^[[:space:]]*//; s/[[:space:]]*$//' `+kind.file)))
		default:
			found = append(found, fail("%v", r).hint(disableRow(kind.file, r.Text)))
		}
	}
	for _, r := range mine {
		for _, o := range all {
			if !o.BelongsTo(a) && r.Overlaps(o) {
				found = append(found, warn("%s (%s) shares ids with %s (%s): each account can access the other's files", r.Where, r, o.Where, o))
			}
		}
	}
	return mine, found, nil
}

func getsubids(ctx context.Context, h *host, a hostinfo.Account, kind subidKind) []hostinfo.SubidRow {
	program := h.lookPath("getsubids")
	if program == "" {
		return nil
	}
	args := append(append([]string{}, kind.getsubids...), a.Name)
	out, err := h.run(ctx, program, args...)
	if err != nil {
		return nil // no rows, or an old getsubids: use the file
	}
	return hostinfo.ParseGetsubids(out, filepath.Base(program)+" "+strings.Join(args, " "))
}

// validateRows checks the account's rows of one kind: the number of ids, overlaps, and the ids that systemd-homed allows.
func validateRows(ctx context.Context, h *host, a hostinfo.Account, kind subidKind, rows []hostinfo.SubidRow) []Finding {
	var found []Finding
	own := int64(a.UID)
	if kind.word == "subgid" {
		own = int64(a.GID)
	}
	var total int64
	for i, r := range rows {
		duplicate := false
		for _, o := range rows[:i] {
			if r.Start == o.Start && r.Count == o.Count {
				duplicate = true
			} else if r.Overlaps(o) {
				found = append(found, fail("%s (%s) and %s (%s) overlap: the kernel rejects an id map that contains both", o.Where, o, r.Where, r).hint(
					"# remove one of the two rows:", disableRow(kind.file, r.String())))
			}
		}
		if duplicate {
			continue
		}
		total += r.Count
		if r.Start <= own && own < r.End() {
			found = append(found, warn("%s (%s) contains the account's own id %d, which is left out", r.Where, r, own))
		}
	}
	if total < hostinfo.MinSubids {
		start := freeSubids(ctx, h, a)
		f := fail("%s has %d %ss, but a node needs %d", a.Name, total, kind.word, hostinfo.MinSubids).hint(
			asRoot(fmt.Sprintf("usermod %s %d-%d %s", kind.usermod, start, start+hostinfo.MinSubids-1, hostinfo.Quote(a.Name))))
		f.fix.setup = true
		found = append(found, f)
	}
	found = append(found, outsideNamespace(h, kind, rows)...)
	return append(found, checkHomed(h, rows)...)
}

// outsideNamespace checks for rows with ids that this user namespace does not have, which is common in containers.
func outsideNamespace(h *host, kind subidKind, rows []hostinfo.SubidRow) []Finding {
	b, err := os.ReadFile(h.path("/proc/self/" + map[string]string{"subuid": "uid_map", "subgid": "gid_map"}[kind.word]))
	if err != nil {
		return nil
	}
	var has []hostinfo.SubidRow // in ascending order, as the kernel prints them, with adjacent ranges merged
	for line := range strings.Lines(string(b)) {
		var first, outer, count int64
		if _, err := fmt.Sscan(line, &first, &outer, &count); err != nil {
			return nil
		}
		if n := len(has); n > 0 && has[n-1].End() == first {
			has[n-1].Count += count
			continue
		}
		has = append(has, hostinfo.SubidRow{Start: first, Count: count})
	}
	for _, r := range rows {
		if slices.ContainsFunc(has, func(o hostinfo.SubidRow) bool { return o.Start <= r.Start && r.End() <= o.End() }) {
			continue
		}
		f := fail("%s (%s): not within the ids of this container, which are %s", r.Where, r, rowsText(has))
		f.fix.add("# give the account a range of " + strconv.Itoa(hostinfo.MinSubids) + " of these ids in " + kind.file + ", or give the container more ids:")
		for _, line := range hostinfo.MoreIDs(h.container()) {
			f.fix.add("# " + line)
		}
		return []Finding{f}
	}
	return nil
}

// homedFirstID is the first id above those of accounts that systemd-homed's id-mapped mounts allow (UIDS-GIDS.md of
// systemd).
const homedFirstID = 524288

func checkHomed(h *host, rows []hostinfo.SubidRow) []Finding {
	mount, ok := mountOf(h, h.in.Data.Dir)
	if !ok || !strings.Contains(","+mount.options+",", ",idmapped,") {
		return nil
	}
	for _, r := range rows {
		if r.Start < homedFirstID {
			return []Finding{fail("%s (%s): the data dir %s is on %s, an id-mapped mount (systemd-homed), which allows only ids from %d",
				r.Where, r, h.in.Data.Dir, mount.point, homedFirstID).hint(
				"# give the account a range that begins at " + strconv.Itoa(homedFirstID) + " or later, or move the data elsewhere: dataDir: /var/lib/...")}
		}
	}
	return nil
}

func rowsText(rows []hostinfo.SubidRow) string {
	var parts []string
	for _, r := range rows {
		parts = append(parts, fmt.Sprintf("%d-%d", r.Start, r.End()-1))
	}
	return strings.Join(parts, " ")
}
