package datadir

import (
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/rootless-containers/rootlesskit/v3/pkg/parent/dynidtools"
	"github.com/rootless-containers/rootlesskit/v3/pkg/parent/idtools"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// IDRange is a range of Count ids of the host that begins with Start.
type IDRange struct {
	Start int64 `json:"start"`
	Count int64 `json:"count"`
}

// String returns the range in the format of usermod(8).
func (r IDRange) String() string { return fmt.Sprintf("%d-%d", r.Start, r.Start+r.Count-1) }

// IDs is the id map of a node's user namespace. The account's own id is mapped to 0, and the ids of Subuids and Subgids to 1 and
// up in the given order. Therefore a different order is a different map.
type IDs struct {
	UID     int       `json:"uid"`
	GID     int       `json:"gid"`
	Subuids []IDRange `json:"subuids"`
	Subgids []IDRange `json:"subgids"`
}

// CurrentIDs returns the id map that RootlessKit would create now, and the name of the account. source is the source of the subordinate
// ids: "auto", "static" or "dynamic", as in the configuration. If it returns an error about the subordinate ids, ids has at least the
// account's own ids.
//
// Runs in: parent.
func CurrentIDs(source string) (ids IDs, account string, err error) {
	u, err := user.Current()
	if err != nil {
		return IDs{}, "", fmt.Errorf("look up the account: %w", err)
	}
	ids.UID, err = strconv.Atoi(u.Uid)
	if err == nil {
		ids.GID, err = strconv.Atoi(u.Gid)
	}
	if err != nil {
		return IDs{}, "", fmt.Errorf("look up the account %s: %w", u.Username, err)
	}
	subuids, subgids, err := subordinate(ids.UID, u.Username, source)
	if err != nil {
		return ids, u.Username, fmt.Errorf("read the subordinate ids of %s: %w", u.Username, err)
	}
	ids.Subuids, ids.Subgids = ranges(subuids, ids.UID), ranges(subgids, ids.GID)
	return ids, u.Username, nil
}

// subordinate reads the subordinate ids from source, like RootlessKit 3.3.0 (getSubIDRanges in pkg/parent/parent.go, not exported).
func subordinate(uid int, name string, source string) (subuids, subgids []idtools.SubIDRange, err error) {
	if source != "static" {
		subuids, subgids, err = dynidtools.GetSubIDRanges(uid, name)
		if source == "dynamic" || err == nil && len(subuids) > 0 && len(subgids) > 0 {
			return subuids, subgids, err
		}
	}
	return idtools.GetSubIDRanges(uid, name)
}

// ranges returns rows without the id own, which RootlessKit maps to 0. It joins adjacent ranges, which does not change the map.
func ranges(rows []idtools.SubIDRange, own int) []IDRange {
	var all []IDRange
	add := func(start, end int64) { // the end is not in the range
		switch n := len(all); {
		case end <= start:
		case n > 0 && all[n-1].Start+all[n-1].Count == start:
			all[n-1].Count += end - start
		default:
			all = append(all, IDRange{start, end - start})
		}
	}
	for _, r := range rows {
		start, end, self := int64(r.Start), int64(r.Start)+int64(r.Length), int64(own)
		if start <= self && self < end {
			add(start, self)
			start = self + 1
		}
		add(start, end)
	}
	return all
}

// IDChange is a difference between the ids with which data was created and the current ones, for uids or gids.
type IDChange struct {
	// Kind is "uid" or "gid".
	Kind string
	// Own is the account's own id when the data was created, and OwnNow the current one.
	Own, OwnNow int
	// Was and Now are the former and the current subordinate ids.
	Was, Now []IDRange
}

// Changes returns the differences between was, the ids with which data was created, and the current ids. Additional ranges after the
// former ones are not a difference, because they do not change the map of the former ids.
func (was IDs) Changes(now IDs) []IDChange {
	var changes []IDChange
	for _, c := range []IDChange{
		{"uid", was.UID, now.UID, was.Subuids, now.Subuids},
		{"gid", was.GID, now.GID, was.Subgids, now.Subgids},
	} {
		if c.Own != c.OwnNow || !begins(c.Now, c.Was) {
			changes = append(changes, c)
		}
	}
	return changes
}

// begins reports whether the map of all begins with the map of first.
func begins(all, first []IDRange) bool {
	all = slices.Clone(all)
	for _, f := range first {
		for f.Count > 0 {
			if len(all) == 0 || all[0].Start != f.Start {
				return false
			}
			n := min(f.Count, all[0].Count)
			f.Start, f.Count = f.Start+n, f.Count-n
			all[0].Start, all[0].Count = all[0].Start+n, all[0].Count-n
			if all[0].Count == 0 {
				all = all[1:]
			}
		}
	}
	return true
}

// String describes the change.
func (c IDChange) String() string {
	if c.Own != c.OwnNow {
		return fmt.Sprintf("the account's %s was %d and is now %d", c.Kind, c.Own, c.OwnNow)
	}
	text := fmt.Sprintf("the subordinate %ss were %s and are now %s", c.Kind, idText(c.Was), idText(c.Now))
	if sameIDs(c.Was, c.Now) {
		text += " (another order maps them to other ids)"
	}
	return text
}

func idText(all []IDRange) string {
	if len(all) == 0 {
		return "none"
	}
	texts := make([]string, len(all))
	for i, r := range all {
		texts[i] = r.String()
	}
	return strings.Join(texts, " ")
}

func sameIDs(a, b []IDRange) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	order := func(x, y IDRange) int { return int(x.Start - y.Start) }
	slices.SortFunc(a, order)
	slices.SortFunc(b, order)
	return slices.Equal(a, b)
}

// ChangesText describes all changes in one line.
func ChangesText(changes []IDChange) string {
	texts := make([]string, len(changes))
	for i, c := range changes {
		texts[i] = c.String()
	}
	return strings.Join(texts, "; ")
}

// Restore returns shell lines with which root restores the former ids of account. Comments show the resulting rows of subuid(5) and
// subgid(5). The commands replace all current rows of the account, because usermod(8) appends rows and the order of rows matters.
func Restore(changes []IDChange, account string) []string {
	lines := []string{"# restore the former ids, because the data's files belong to them"}
	for _, c := range changes {
		lines = append(lines, c.rows(account)...)
		lines = append(lines, c.commands(account)...)
	}
	return lines
}

// DeleteHint returns a hint to delete the data of the node called name.
func DeleteHint(name string) errdefs.Hint {
	return append(errdefs.Text("# or delete the data:"), errdefs.Step{Action: errdefs.DeleteData, Node: name})
}

// rows returns comments with the rows that account must have, in this order.
func (c IDChange) rows(account string) []string {
	file := hostinfo.SubuidFile
	if c.Kind == "gid" {
		file = hostinfo.SubgidFile
	}
	if c.Own != c.OwnNow {
		return nil
	}
	lines := make([]string, len(c.Was))
	for i, r := range c.Was {
		lines[i] = fmt.Sprintf("# row of %s: %s:%d:%d", file, account, r.Start, r.Count)
	}
	return lines
}

func (c IDChange) commands(account string) []string {
	name := hostinfo.Quote(account)
	if c.Own != c.OwnNow {
		return []string{fmt.Sprintf("usermod --%s %d %s", c.Kind, c.Own, name)}
	}
	var commands []string
	add := func(verb string, all []IDRange) {
		for _, r := range all { // one command for each range, because usermod reverses the order of several
			commands = append(commands, fmt.Sprintf("usermod --%s-sub%ss %s %s", verb, c.Kind, r, name))
		}
	}
	add("del", c.Now)
	add("add", c.Was)
	return commands
}
