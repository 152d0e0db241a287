// Package preflight checks whether the host meets the requirements of a node, before anything is created. The catalogue lists
// the checks; each has a stable code and returns findings. `up` and `check` use the same list.
//
// The checks do not change the host and contact no other host, except that NodeAddress may resolve the name of an API server.
// All files are looked up below Input.Root, and all queries to the kernel go through Input.Probes, so that each check can be
// tested on a fake host.
//
// Runs in: parent, before the namespaces exist.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Level is the severity of a finding.
type Level string

// Levels. With LevelWarn the node starts, but a feature is missing or may fail. With LevelFail it cannot start.
const (
	LevelPass Level = "pass"
	LevelWarn Level = "warn"
	LevelFail Level = "fail"
)

// Finding is one result of a check. A check can have several.
type Finding struct {
	// Code and Check are the code and the name of the check, see Check.
	Code  string `json:"code"`
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Message is the value that was found and its meaning, one line for people.
	Message string `json:"message"`
	// Why is the reason why it matters. Empty if Level is LevelPass.
	Why string `json:"why,omitempty"`
	// Hint is how to fix it on this host, in plain words: shell commands, comments and actions. Empty if there is nothing to do.
	// Steps is the same as data. Render replaces the words.
	Hint  string       `json:"hint,omitempty"`
	Steps errdefs.Hint `json:"steps,omitempty"`
	// Details are the values behind the message, for programs.
	Details map[string]string `json:"details,omitempty"`

	fix fix
}

// Input is the input of Run.
type Input struct {
	// Config is the node's complete, valid configuration. nil: the default configuration.
	Config *config.NodeConfig
	// Runtime and Data are the directories that the node will use.
	Runtime layout.Runtime
	Data    layout.Data
	// ComponentsDir is the directory that FindComponents returned. Empty: not found in ComponentsTried.
	ComponentsDir   string
	ComponentsTried []string
	// UID of the account that runs the node.
	UID int
	// Exe is the absolute path of this executable, without symbolic links.
	Exe string
	// DriverFault is why this program cannot be executed with the configured network driver. nil: it can.
	DriverFault error
	// Env is the environment in the format of os.Environ. Only PATH, HOME, XDG_DATA_HOME and XDG_RUNTIME_DIR are used.
	Env []string
	// Running is set if this node is running and therefore uses its ports itself.
	Running bool
	// InheritedListeners are the TCP addresses (host:port) on which the service manager already listens for the node.
	InheritedListeners []string
	// Root is prepended to every path of the host, for tests. Empty: the real host.
	Root string
	// Probes query the kernel. The zero value queries the real one.
	Probes Probes
}

// rootCheck is the name of the check that runs first. If it fails, no other check runs.
const rootCheck = "root"

// Run runs all checks concurrently and returns their findings in the order of Names, at least one for each check. For uid 0
// it returns only the finding of the check "root".
func Run(ctx context.Context, in Input) []Finding {
	h := newHost(ctx, in)
	list := checks()
	if root := checkRoot(h); root.Level == LevelFail {
		return h.finish(list[0].name([]Finding{root}))
	}
	results := make([][]Finding, len(list))
	var wg sync.WaitGroup
	for i, c := range list {
		wg.Go(func() { results[i] = c.name(c.run(ctx, h)) })
	}
	wg.Wait()
	return h.finish(slices.Concat(results...))
}

// name sets the fields of findings that identify the check.
func (c Check) name(found []Finding) []Finding {
	for i := range found {
		f := &found[i]
		f.Code, f.Check = c.Code, c.Name
		if f.Level != LevelPass {
			f.Why = c.Why
		}
	}
	return found
}

func checkRoot(h *host) Finding {
	if h.in.UID != 0 {
		return pass("running as an ordinary user, uid %d", h.in.UID)
	}
	f := fail("a node must be run by an ordinary user, not by root")
	once := "# once, to create a dedicated account:"
	if h.probes.InUserNS() {
		f = fail("a node must be run by an ordinary user, not by root, and this process is root in a user namespace")
		f.fix.add("# leave this user namespace (unshare, a rootless container, a shell in a node) and start the node as the account that created it;")
		once = "# or, in a container that has enough ids for a dedicated account, once:"
	}
	const account = "rootlessnode"
	f.fix.steps = append(f.fix.steps.Text(once).Do(errdefs.CreateAccount, account).Text("# then, each time:"),
		errdefs.Step{Action: errdefs.Start, As: account})
	return f
}

// Render replaces the plain words in Hint by those of the caller, and removes Steps.
func (f *Finding) Render(words func(errdefs.Step) string) {
	if len(f.Steps) > 0 {
		f.Hint, f.Steps = f.Steps.Render(words), nil
	}
}

// Err returns nil if no finding is a failure. Otherwise it returns one error of class errdefs.ErrPreflight that lists all
// failures and has one hint: a single block of commands that fixes all of them.
func Err(findings []Finding) error {
	var faults []error
	var all fix
	for _, f := range findings {
		if f.Level != LevelFail {
			continue
		}
		faults = append(faults, fmt.Errorf("%s: %s", f.Code, f.Message))
		if f.fix.empty() && f.Hint != "" { // from JSON
			f.fix.steps = f.Steps
			if len(f.Steps) == 0 {
				f.fix.add(f.Hint)
			}
		}
		all.merge(f.fix)
	}
	if len(faults) == 0 {
		return nil
	}
	return errdefs.Preflight("%w", errors.Join(faults...)).With(all.hint())
}

func pass(format string, args ...any) Finding {
	return Finding{Level: LevelPass, Message: fmt.Sprintf(format, args...)}
}

func warn(format string, args ...any) Finding {
	return Finding{Level: LevelWarn, Message: fmt.Sprintf(format, args...)}
}

func fail(format string, args ...any) Finding {
	return Finding{Level: LevelFail, Message: fmt.Sprintf(format, args...)}
}

// orPass returns found, or a single finding of level pass if found is empty.
func orPass(found []Finding, format string, args ...any) []Finding {
	if len(found) > 0 {
		return found
	}
	return []Finding{pass(format, args...)}
}

func (f Finding) with(details map[string]string) Finding {
	f.Details = details
	return f
}

// failure returns the failure for an error, with its hints.
func failure(err error) Finding {
	f := fail("%v", err)
	for _, h := range errdefs.ReportOf(err).Steps {
		f = f.steps(h)
	}
	return f
}

func (f Finding) steps(h errdefs.Hint) Finding {
	f.fix.steps = append(f.fix.steps, h...)
	return f
}

func (f Finding) hint(lines ...string) Finding {
	f.fix.add(lines...)
	return f
}

// self returns the command with which root runs this program.
func (h *host) self() string {
	if h.in.Exe != "" {
		return hostinfo.Quote(h.in.Exe)
	}
	return "rootlessnode"
}

// container returns the kind of container that this host looks like, or "". A machine whose file system was created from a
// container image looks like one too. Use it only for faults that occur only in containers.
func (h *host) container() string { return hostinfo.DetectContainer(h.path("/")) }

// confined reports whether this is a container whose root does not have the rights of a machine's root.
func (h *host) confined() bool { return h.container() != "" && hostinfo.LacksSysAdmin(h.path("/")) }

// unreadable returns the warning that a file of the host cannot be read. This does not prevent the start.
func unreadable(err error) []Finding {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return []Finding{warn("not checked: %s: %v", pe.Path, pe.Err)}
	}
	return []Finding{warn("not checked: %v", err)}
}
