package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Step is one step of the setup.
type Step struct {
	// Name identifies the step in the record. It is one word.
	Name string
	// Title describes the step, and Why is the reason. One line each.
	Title, Why string
	// Commands are equivalent shell commands for root, for the current state of the host. Empty if nothing is needed.
	Commands []string
	// Refused is not nil if the step is unsafe: it would make root execute or trust a file that an account can replace.
	Refused error
	// Needed reports whether the step has to be done. It changes nothing.
	Needed func() (bool, error)
	// Do does the step. nil for a step that the administrator has to do, such as installing packages.
	Do func(ctx context.Context) error
	// Undo reverts the changes that Do recorded.
	Undo func(ctx context.Context) error
	// Note has further instructions for the administrator, if there are any: a comment, also with an alternative action.
	Note errdefs.Hint
}

// Plan is the ordered list of steps that set up the host for one account.
type Plan struct {
	Steps []Step

	env    *env
	record *record
}

// Outcome is the outcome of a step.
type Outcome string

// Outcomes.
const (
	// Done: the step was needed and was done.
	Done Outcome = "done"
	// Already: the step was not needed.
	Already Outcome = "already"
	// Manual: the administrator has to do the step with Commands.
	Manual Outcome = "manual"
	// Refused: the step is unsafe on this host (Step.Refused); the plan continues without it.
	Refused Outcome = "refused"
	// Failed: the step failed; the plan stops.
	Failed Outcome = "failed"
	// Undone: the changes of the step were reverted.
	Undone Outcome = "undone"
)

// Result is a step and its outcome.
type Result struct {
	Step    Step
	Outcome Outcome
}

// NewPlan inspects the host and returns the plan for o.User. It changes nothing and needs only read access. It returns an error of
// class errdefs.ErrConfig if the account does not exist and o.CreateUser is not set.
func NewPlan(o Options) (*Plan, error) {
	e := newEnv(o)
	if !isAccountName(o.User) {
		return nil, errdefs.Config("user %q: not a valid account name", o.User)
	}
	if o.SubidCount < 0 || o.PortStart < 0 || o.PortStart > 65535 {
		return nil, errdefs.Config("the number of subordinate ids must not be negative, and the first port must be from 0 to 65535")
	}
	if o.LXCUserNIC != "" && !hostinfo.IsInterfaceName(o.LXCUserNIC) {
		return nil, errdefs.Config("bridge %q: not a valid interface name", o.LXCUserNIC)
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
		return nil, errdefs.Config("user %s is root: a node must be run by an ordinary user", o.User).
			Hint("specify another account, or add --create-user")
	case ok && a.Name != o.User: // a uid, or another spelling that a directory service accepts
		return nil, errdefs.Config("user %q: use the name of the account, %q", o.User, a.Name)
	case !ok && o.CreateUser && !isNewName(o.User):
		return nil, errdefs.Config("user %q: useradd does not accept this name for a new account", o.User)
	case !ok && !o.CreateUser && len(r.Steps) == 0:
		return nil, errdefs.Config("user %s does not exist", o.User).Hint("add --create-user to create the account")
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

// isAccountName reports whether s can be the name of an account that exists, perhaps in a directory service (dom\user, user@domain). Such a
// name is safe as the name of a file and as an argument. Commands must quote it.
func isAccountName(s string) bool {
	const longest = 240 // with a suffix, a file name
	return s != "" && len(s) <= longest && s[0] != '-' && s[0] != '.' && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || r == ':' || unicode.IsControl(r)
	})
}

// isNewName reports whether s is a name that useradd(8) accepts.
func isNewName(s string) bool {
	if s == "" || len(s) > 32 || s[0] == '-' || s[0] >= '0' && s[0] <= '9' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		isLetter, isDigit := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z', r >= '0' && r <= '9'
		return !isLetter && !isDigit && !strings.ContainsRune("._-", r)
	})
}

// Run does the needed steps in order, calls report for each, and stops at the first step that fails. Completed steps are recorded,
// so that Run can be repeated after the cause is fixed. Run skips refused steps and finally returns the error of Refused.
func (p *Plan) Run(ctx context.Context, report func(Result)) error {
	if err := p.mustBeRoot("host setup", errdefs.SetUpHost); err != nil {
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
			outcome = Manual
		case needed:
			outcome = Done
			if err = s.Do(ctx); err != nil {
				outcome = Failed
			}
			err = errors.Join(err, p.record.save())
		}
		report(Result{s, outcome})
		if err != nil {
			return errdefs.Errorf("host setup: %s: %w", s.Name, err).Hint(strings.Join(s.Commands, "\n"))
		}
	}
	return p.Refused()
}

// Refused returns an error of class errdefs.ErrPreflight that lists the refused steps, or nil if there are none.
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
	return errdefs.Preflight("%w", errors.Join(faults...)).Hint(hostinfo.InstallFirst(p.env.Exe)...).
		With(errdefs.Hint{{Action: errdefs.SetUpHost, Args: []string{p.env.User}, Program: hostinfo.Installed}})
}

// Undo reverts, in reverse order, the recorded changes of Run for this account that were not modified since. It continues after
// errors and returns them joined.
func (p *Plan) Undo(ctx context.Context, report func(Result)) error {
	if err := p.mustBeRoot("host undo", errdefs.UndoHost); err != nil {
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

func (p *Plan) mustBeRoot(operation string, action errdefs.Action) error {
	if p.env.EUID() == 0 {
		return nil
	}
	return errdefs.Preflight("%s: only root can do this", operation).
		With(errdefs.Hint{{Action: action, Args: []string{p.env.User}, Sudo: true}})
}

// Script returns the output of --dry-run: a POSIX shell script for root with the same effect as Run. Steps that are not needed are
// comments.
func (p *Plan) Script() (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "#!/bin/sh\n# host setup for the account %s: run this as root\nset -eu\n", p.env.User)
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
				c = "# " + c // the administrator has to do it, as in Run
			}
			b.WriteString(c + "\n")
		}
		if len(s.Note) > 0 {
			b.WriteString(s.Note.String() + "\n")
		}
	}
	return b.String(), nil
}

// oneLine replaces control characters in text, which may contain a path, so that it stays within a comment.
func oneLine(text string) string { return strings.Map(printable, text) }

func printable(r rune) rune {
	if r < ' ' || r == 0x7f {
		return '?'
	}
	return r
}

// distro returns the distribution of the host.
func (e *env) distro() hostinfo.Distro { return hostinfo.DetectDistro(e.Root) }
