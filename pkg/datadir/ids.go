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
)

// IDRange is Count ids of the host, from Start on.
type IDRange struct {
	Start int64 `json:"start"`
	Count int64 `json:"count"`
}

// String is the range as usermod(8) takes it.
func (r IDRange) String() string { return fmt.Sprintf("%d-%d", r.Start, r.Start+r.Count-1) }

// IDs is the id map of a node's user namespace. Inside, the account's own id is 0, and Subuids and Subgids follow one
// another from 1 on, so that their order matters as much as their values.
type IDs struct {
	UID     int       `json:"uid"`
	GID     int       `json:"gid"`
	Subuids []IDRange `json:"subuids"`
	Subgids []IDRange `json:"subgids"`
}

// CurrentIDs returns the map that RootlessKit would make now, with the subordinate ids from source: "auto", "static" or
// "dynamic", as in the configuration. It reads them by RootlessKit's own functions. account is the name of the account. When the
// subordinate ids cannot be read, or there are none, the account's own ids are set all the same.
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

// subordinate chooses the source as RootlessKit does (3.3.0, getSubIDRanges of pkg/parent/parent.go, which is not exported).
func subordinate(uid int, name string, source string) (subuids, subgids []idtools.SubIDRange, err error) {
	if source != "static" {
		subuids, subgids, err = dynidtools.GetSubIDRanges(uid, name)
		if source == "dynamic" || err == nil && len(subuids) > 0 && len(subgids) > 0 {
			return subuids, subgids, err
		}
	}
	return idtools.GetSubIDRanges(uid, name)
}

// ranges leaves out own, which RootlessKit maps to 0, and joins ranges that continue each other: the map is the same.
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

// IDChange is a difference between the ids that data was created with and the present ones, for one kind of id.
type IDChange struct {
	// Kind is "uid" or "gid".
	Kind string
	// Own is the account's own id then; OwnNow is the present one.
	Own, OwnNow int
	// Was and Now are the subordinate ids.
	Was, Now []IDRange
}

// Changes compares the ids that data was created with and the present ones. More ranges after the recorded ones are no
// change, because they leave the map of the recorded ones as it is.
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

// begins reports whether the map that all makes begins with the map that first makes.
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

// String tells what has changed.
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

// ChangesText tells of all changes in one line.
func ChangesText(changes []IDChange) string {
	texts := make([]string, len(changes))
	for i, c := range changes {
		texts[i] = c.String()
	}
	return strings.Join(texts, "; ")
}

// Restore is a block of shell lines by which root gives account the former ids again, with the rows that subuid(5) and
// subgid(5) then have as comments. usermod(8) appends rows and their order matters, so all present rows of the account are replaced.
func Restore(changes []IDChange, account string) []string {
	lines := []string{"# restore the former ids, because the data's files belong to them"}
	for _, c := range changes {
		lines = append(lines, c.rows(account)...)
		lines = append(lines, c.commands(account)...)
	}
	return lines
}

// DeleteHint is the other way out.
func DeleteHint(name string) string {
	return "# or delete the data:\nrootlessnode --name " + hostinfo.Quote(name) + " down --delete-data"
}

// rows are comments with the rows that account must have, in this order.
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
		for _, r := range all { // one command for each: usermod reverses the order of several
			commands = append(commands, fmt.Sprintf("usermod --%s-sub%ss %s %s", verb, c.Kind, r, name))
		}
	}
	add("del", c.Now)
	add("add", c.Was)
	return commands
}
