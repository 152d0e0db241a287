package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func (e *env) ownRows() map[string][]string {
	out := map[string][]string{}
	for _, file := range []string{hostinfo.SubuidFile, hostinfo.SubgidFile} {
		rows, _, _ := hostinfo.ReadSubids(e.Root, file)
		for _, r := range rows {
			if r.Owner == e.User {
				out[file] = append(out[file], r.String())
			}
		}
	}
	return out
}

// missingRows returns the rows to add, by file, so that the account has SubidCount ids. Their range overlaps no row of either
// file.
func (e *env) missingRows(ctx context.Context) (map[string]string, error) {
	a, ok, err := e.account(ctx)
	if err != nil {
		return nil, err
	}
	if !ok {
		a = hostinfo.Account{Name: e.User, UID: -1}
	}
	var all []hostinfo.SubidRow
	lack := map[string]int64{}
	for _, file := range []string{hostinfo.SubuidFile, hostinfo.SubgidFile} {
		rows, bad, err := hostinfo.ReadSubids(e.Root, file)
		if err != nil {
			return nil, err
		}
		for _, r := range bad {
			if r.Blocks || r.BelongsTo(a) {
				return nil, errdefs.Errorf("%v", r).Do(errdefs.CheckHost)
			}
		}
		all = append(all, rows...)
		want := e.SubidCount
		for _, r := range rows {
			if r.BelongsTo(a) {
				want -= r.Count
			}
		}
		if want > 0 {
			lack[file] = want
		}
	}
	if len(lack) == 0 {
		return nil, nil
	}
	if service := hostinfo.SubidService(e.Root); service != "" {
		return nil, checkService(ctx, e, service)
	}
	count := max(lack[hostinfo.SubuidFile], lack[hostinfo.SubgidFile])
	start := freeSubids(ctx, e, a, all, count)
	if start < 0 {
		return nil, fmt.Errorf("%s: no free range of %d ids", strings.Join(sortedKeys(lack), " and "), count)
	}
	out := map[string]string{}
	for file, count := range lack {
		out[file] = hostinfo.SubidRow{Owner: e.User, Start: start, Count: count}.String()
	}
	return out, nil
}

// checkService returns an error if the directory service does not provide enough subordinate ids for the account.
func checkService(ctx context.Context, e *env, service string) error {
	for _, kind := range [][]string{nil, {"-g"}} {
		args := append(kind, e.User)
		out, err := exec.CommandContext(ctx, e.LookPath("getsubids"), args...).Output()
		have := int64(0)
		for _, r := range hostinfo.ParseGetsubids(out, service) {
			have += r.Count
		}
		if have < e.SubidCount {
			return errdefs.Class(errdefs.ErrPreflight, errdefs.WithHint(errors.Join(
				fmt.Errorf("subordinate ids come from %s (subid in /etc/nsswitch.conf), and %s has %d there, but needs %d", service, e.User, have, e.SubidCount), err),
				"# on the directory server, for FreeIPA:\nipa subid-generate --owner="+e.quoted()))
		}
	}
	return nil
}

// rangeTries is the maximum number of ranges for which the name service is queried.
const rangeTries = 50

// freeSubids returns the start of count ids that no row, account or group uses, or -1 if there is no such range.
func freeSubids(ctx context.Context, e *env, a hostinfo.Account, rows []hostinfo.SubidRow, count int64) int64 {
	getent := e.LookPath("getent")
	rows = append(rows, hostinfo.TakenIDs(ctx, e.Root, getent, a)...)
	within := hostinfo.SubidRange(e.Root)
	for range rangeTries {
		start := hostinfo.FreeSubids(rows, count, within)
		if start < 0 || getent == "" {
			return start
		}
		taken := hostinfo.FindTaken(ctx, getent, hostinfo.SubidRow{Start: start, Count: count})
		if len(taken) == 0 {
			return start
		}
		rows = append(rows, taken...)
	}
	return -1
}

func subidStep(p *Plan) (Step, error) {
	e := p.env
	rows, err := e.missingRows(context.Background())
	if err != nil {
		return Step{}, err
	}
	s := Step{
		Name: "subids", Title: fmt.Sprintf("assign %[2]d subordinate uids and gids to %[1]s", e.User, e.SubidCount),
		Why: "users inside pods have these ids on the host (subuid(5), subgid(5))",
		Needed: func() (bool, error) {
			rows, err := e.missingRows(context.Background())
			return len(rows) > 0, err
		},
		Do: func(ctx context.Context) error {
			unlock, err := e.lockSubids(ctx)
			if err != nil {
				return err
			}
			defer unlock()
			rows, err := e.missingRows(ctx) // again, because useradd may have added some
			if err != nil {
				return err
			}
			for _, file := range sortedKeys(rows) {
				if err := e.appendRow(file, rows[file]); err != nil {
					return err
				}
				p.record.add("subids", entry{Rows: map[string][]string{file: {rows[file]}}})
			}
			return nil
		},
		Undo: func(ctx context.Context) error {
			unlock, err := e.lockSubids(ctx)
			if err != nil {
				return err
			}
			defer unlock()
			var faults []error
			for file, rows := range p.record.Steps["subids"].Rows {
				faults = append(faults, e.removeRows(file, rows))
			}
			return errors.Join(faults...)
		},
	}
	for _, file := range sortedKeys(rows) {
		s.Commands = append(s.Commands, rowCommands(e, file, rows[file])...)
	}
	return s, nil
}

// rowCommands returns shell commands that add a row, with usermod(8) if it can change the account, because it locks the file.
func rowCommands(e *env, file, row string) []string {
	unless := ""
	if e.CreateUser { // useradd may add some
		unless = fmt.Sprintf("grep -q '^%s:' %s || ", e.User, file)
	}
	added, _ := hostinfo.ParseSubids([]byte(row), file)
	_, local, err := hostinfo.Lookup(context.Background(), e.Root, e.User, "") // without the directory services
	if e.LookPath("usermod") != "" && (local || e.CreateUser) && err == nil && len(added) == 1 {
		option := map[string]string{hostinfo.SubuidFile: "--add-subuids", hostinfo.SubgidFile: "--add-subgids"}[file]
		return []string{fmt.Sprintf("%susermod %s %d-%d %s", unless, option, added[0].Start, added[0].End()-1, e.quoted())}
	}
	var lines []string
	if e.endsMidLine(file) {
		lines = append(lines, "echo >> "+file)
	}
	return append(lines, fmt.Sprintf("%secho %s >> %s", unless, hostinfo.Quote(row), file))
}

func (e *env) appendRow(file, row string) error {
	text, err := os.ReadFile(e.path(file))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	return replaceText(e.path(file), append(text, row+"\n"...))
}

// endsMidLine reports whether the file does not end with a newline, so that appended text would become part of its last line.
func (e *env) endsMidLine(file string) bool {
	b, err := os.ReadFile(e.path(file))
	return err == nil && len(b) > 0 && b[len(b)-1] != '\n'
}
