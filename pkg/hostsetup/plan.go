package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Step is one thing that root does.
type Step struct {
	// Name is one word; it stands in the record of what was done.
	Name string
	// Title says what, Why what for: one line each.
	Title, Why string
	// Commands are the lines that do the same in a shell of root, for the host as it is now. Empty where nothing is
	// needed.
	Commands []string
	// Refused is why the step is not done: it would make root execute or trust a file that an account can replace.
	Refused error
	// Needed tells whether the step has something to do. It changes nothing.
	Needed func() (bool, error)
	// Do does it. nil for a step that is left to the administrator, such as installing packages.
	Do func(ctx context.Context) error
	// Undo takes back what Do recorded.
	Undo func(ctx context.Context) error
	// Note is what remains to be done by hand afterwards, if anything.
	Note string
}

// Plan is what setting up the host for one account takes, in order.
type Plan struct {
	Steps []Step

	env    *env
	record *record
}

// Outcome of a step.
type Outcome string

// Outcomes.
const (
	// Done: the step was needed and is done now.
	Done Outcome = "done"
	// Already: nothing was to be done.
	Already Outcome = "already"
	// ByHand: the administrator has to do it; Commands say how.
	ByHand Outcome = "by hand"
	// Refused: it is unsafe here (Step.Refused); the plan goes on without it.
	Refused Outcome = "refused"
	// Failed: it was tried; the plan stops there.
	Failed Outcome = "failed"
	// Undone: taken back.
	Undone Outcome = "undone"
)

// Result tells how a step went.
type Result struct {
	Step    Step
	Outcome Outcome
}

// NewPlan looks at the host and returns what is to be done for o.User. It changes nothing and needs no privilege beyond
// reading. An account that does not exist is an error of class errdefs.ErrConfig unless o.CreateUser.
func NewPlan(o Options) (*Plan, error) {
	e := newEnv(o)
	if !isUserName(o.User) {
		return nil, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("user %q: not the name of an account", o.User))
	}
	if o.SubidCount < 0 || o.PortStart < 0 || o.PortStart > 65535 {
		return nil, errdefs.Class(errdefs.ErrConfig, errors.New("the number of subordinate ids and the first port must not be negative or out of range"))
	}
	if o.LXCUserNIC != "" && !hostinfo.IsInterfaceName(o.LXCUserNIC) {
		return nil, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("bridge %q: not the name of an interface", o.LXCUserNIC))
	}
	r, err := readRecord(e)
	if err != nil {
		return nil, err
	}
	a, ok, err := e.account(context.Background())
	switch {
	case err != nil:
		return nil, err
	case ok && a.UID == 0:
		return nil, errdefs.Class(errdefs.ErrConfig, errdefs.WithHint(
			fmt.Errorf("user %s is root: a node must be run by an ordinary user", o.User), "name another account, or --create-user"))
	case !ok && !o.CreateUser && len(r.Steps) == 0:
		return nil, errdefs.Class(errdefs.ErrConfig, errdefs.WithHint(
			fmt.Errorf("user %s does not exist", o.User), "add --create-user to make the account"))
	}
	p := &Plan{env: e, record: r}
	for _, step := range []func(*Plan) (Step, error){
		accountStep, subidStep, packageStep, idMapStep, moduleStep, sysctlStep, appArmorStep, tunStep, lxcNicStep, cgroupStep, elogindStep, sessionStep, bootStep,
	} {
		s, err := step(p)
		if err != nil {
			return nil, err
		}
		if s.Name != "" {
			p.Steps = append(p.Steps, s)
		}
	}
	return p, nil
}

// isUserName keeps to what useradd(8) takes, so that a name is harmless in a file, a path and a command.
func isUserName(s string) bool {
	if s == "" || len(s) > 32 || s[0] == '-' || s[0] >= '0' && s[0] <= '9' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		isLetter, isDigit := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z', r >= '0' && r <= '9'
		return !isLetter && !isDigit && !strings.ContainsRune("._-", r)
	})
}

// Run does the steps that are needed, in order, telling report of each, and stops at the first that fails; what was done
// before stays and is recorded, so that Run can be repeated after the cause is mended. Steps that are refused are left out, and
// all of them together are the error then.
func (p *Plan) Run(ctx context.Context, report func(Result)) error {
	if err := p.mustBeRoot("host setup"); err != nil {
		return err
	}
	for _, s := range p.Steps {
		if s.Refused != nil {
			report(Result{s, Refused})
			continue
		}
		needed, err := s.Needed()
		outcome := Already
		switch {
		case err != nil:
			outcome = Failed
		case needed && s.Do == nil:
			outcome = ByHand
		case needed:
			outcome = Done
			if err = s.Do(ctx); err != nil {
				outcome = Failed
			}
			err = errors.Join(err, p.record.save())
		}
		report(Result{s, outcome})
		if err != nil {
			return errdefs.WithHint(fmt.Errorf("host setup: %s: %w", s.Name, err), strings.Join(s.Commands, "\n"))
		}
	}
	return p.Refused()
}

// Refused is the error of the steps that are refused, of class errdefs.ErrPreflight; nil if there are none.
func (p *Plan) Refused() error {
	var faults []error
	for _, s := range p.Steps {
		if s.Refused != nil {
			faults = append(faults, fmt.Errorf("host setup: %s: %w", s.Name, s.Refused))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return errdefs.Class(errdefs.ErrPreflight, errdefs.WithHint(errors.Join(faults...),
		hostinfo.InstallFirst(p.env.Exe, "host setup --user "+p.env.User)))
}

// Undo takes back, in reverse order, what Run did for this account as far as it is recorded and still as it was left.
// Every step is tried; the errors are joined.
func (p *Plan) Undo(ctx context.Context, report func(Result)) error {
	if err := p.mustBeRoot("host undo"); err != nil {
		return err
	}
	var faults []error
	for i := len(p.Steps) - 1; i >= 0; i-- {
		s := p.Steps[i]
		if s.Undo == nil || !p.record.has(s.Name) {
			report(Result{s, Already})
			continue
		}
		if err := s.Undo(ctx); err != nil {
			faults = append(faults, fmt.Errorf("host undo: %s: %w", s.Name, err))
			report(Result{s, Failed})
			continue
		}
		p.record.forget(s.Name)
		faults = append(faults, p.record.save())
		report(Result{s, Undone})
	}
	return errors.Join(faults...)
}

func (p *Plan) mustBeRoot(what string) error {
	if p.env.EUID() != 0 {
		return errdefs.Class(errdefs.ErrPreflight, errdefs.WithHintf(fmt.Errorf("%s: only root can do this", what),
			"sudo rootlessnode %s --user %s", what, p.env.User))
	}
	return nil
}

// Script is what --dry-run prints: a POSIX shell script for root that does what Run would do now. Steps with nothing to
// do are comments.
func (p *Plan) Script() (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "#!/bin/sh\n# host setup for the account %s, to be run by root\nset -eu\n", p.env.User)
	for _, s := range p.Steps {
		if s.Refused != nil {
			fmt.Fprintf(&b, "\n# %s: refused: %s\n", oneLine(s.Title), oneLine(s.Refused.Error()))
			continue
		}
		needed, err := s.Needed()
		if err != nil {
			return "", fmt.Errorf("host setup: %s: %w", s.Name, err)
		}
		if !needed {
			fmt.Fprintf(&b, "\n# %s: nothing to do\n", oneLine(s.Title))
			continue
		}
		fmt.Fprintf(&b, "\n# %s\n# %s\n", oneLine(s.Title), oneLine(s.Why))
		for _, c := range s.Commands {
			if s.Do == nil {
				c = "# " + c // left to the administrator, here as there
			}
			b.WriteString(c + "\n")
		}
		if s.Note != "" {
			b.WriteString("# " + s.Note + "\n")
		}
	}
	return b.String(), nil
}

// oneLine keeps text, which may hold a path, within a comment.
func oneLine(text string) string { return strings.Map(printable, text) }

func printable(r rune) rune {
	if r < ' ' || r == 0x7f {
		return '?'
	}
	return r
}

// Distro is how packages are installed here.
func (e *env) distro() hostinfo.Distro { return hostinfo.DetectDistro(e.Root) }
