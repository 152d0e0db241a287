package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
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

// missingRows are the rows to add, by file: what brings the account up to the number wanted, in a range that no row of
// either file has.
func (e *env) missingRows() (map[string]string, error) {
	a, ok, err := e.account(context.Background())
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
		if len(bad) > 0 {
			return nil, fmt.Errorf("%s: want NAME:START:COUNT", strings.Join(bad, ", "))
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
	out := map[string]string{}
	for file, count := range lack {
		start := hostinfo.FreeSubids(all, max(lack[hostinfo.SubuidFile], lack[hostinfo.SubgidFile]))
		if start < 0 {
			return nil, fmt.Errorf("%s: no free range of %d ids is left", file, count)
		}
		out[file] = hostinfo.SubidRow{Owner: e.User, Start: start, Count: count}.String()
	}
	return out, nil
}

func subidStep(p *Plan) (Step, error) {
	e := p.env
	rows, err := e.missingRows()
	if err != nil {
		return Step{}, err
	}
	s := Step{
		Name: "subids", Title: fmt.Sprintf("give %s %d subordinate uids and gids", e.User, e.SubidCount),
		Why: "the users inside pods are these ids on the host (subuid(5), subgid(5))",
		Needed: func() (bool, error) {
			rows, err := e.missingRows()
			return len(rows) > 0, err
		},
		Do: func(context.Context) error {
			rows, err := e.missingRows() // anew: useradd may have given some
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
		Undo: func(context.Context) error {
			var faults []error
			for file, rows := range p.record.Steps["subids"].Rows {
				faults = append(faults, e.removeRows(file, rows))
			}
			return errors.Join(faults...)
		},
	}
	for _, file := range sortedKeys(rows) {
		if e.endsMidLine(file) {
			s.Commands = append(s.Commands, "echo >> "+file)
		}
		if e.CreateUser {
			s.Commands = append(s.Commands, fmt.Sprintf("grep -q '^%s:' %s || echo %s >> %s", e.User, file, rows[file], file))
			continue
		}
		s.Commands = append(s.Commands, fmt.Sprintf("echo %s >> %s", rows[file], file))
	}
	return s, nil
}

func (e *env) appendRow(file, row string) error {
	text := row + "\n"
	if e.endsMidLine(file) {
		text = "\n" + text
	}
	f, err := os.OpenFile(e.path(file), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// endsMidLine tells whether the last line of a file lacks its end, so that a row appended would become part of it.
func (e *env) endsMidLine(file string) bool {
	b, err := os.ReadFile(e.path(file))
	return err == nil && len(b) > 0 && b[len(b)-1] != '\n'
}
