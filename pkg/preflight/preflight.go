// Package preflight compares the host with what a node needs, before anything is made. Each named check answers with
// findings; `up`, `check` and its JSON share the one list.
//
// It changes nothing and asks the network nothing. Every file is looked for below Input.Root, and what only the kernel can
// answer goes through Input.Probes, so each check can be tried on a made-up host.
//
// Runs in: parent, before the namespaces exist.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// Level is how much a finding matters.
type Level string

// Levels. LevelWarn: the node starts, and something will be missing or may go wrong. LevelFail: it cannot start.
const (
	LevelPass Level = "pass"
	LevelWarn Level = "warn"
	LevelFail Level = "fail"
)

// Finding is the result of a check, or one of its results.
type Finding struct {
	// Check is the check's name, one of Names.
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Message is one line for a person.
	Message string `json:"message"`
	// Hint is the way out: lines for a shell, with comments, right for this host. Empty where there is nothing to do.
	Hint string `json:"hint,omitempty"`
	// Details are the facts behind the message, for programs.
	Details map[string]string `json:"details,omitempty"`

	fix fix
}

// Input is what Run looks at.
type Input struct {
	// Config is the node's complete, valid configuration. nil: the default one.
	Config *config.NodeConfig
	// Runtime and Data are the places that the node will use.
	Runtime layout.Runtime
	Data    layout.Data
	// ComponentsDir is what FindComponents found. Empty: nothing, having tried ComponentsTried.
	ComponentsDir   string
	ComponentsTried []string
	// UID of the account that runs the node.
	UID int
	// Exe is the absolute path of our own executable, without links.
	Exe string
	// Env is the environment, as os.Environ gives it; PATH, HOME and XDG_RUNTIME_DIR count.
	Env []string
	// Running says that this very node runs, so the ports it wants are its own.
	Running bool
	// Held are addresses, host:port, on which the service manager listens for us already, by TCP.
	Held []string
	// Root is put before every path of the host. Empty: the real host.
	Root string
	// Probes are questions to the kernel. The zero value asks it.
	Probes Probes
	// Deep, if set, is run after the checks and its findings are appended: probes that need namespaces and take longer.
	Deep func(ctx context.Context) []Finding
}

// check is one named requirement. run answers in the order in which it wants to be read.
type check struct {
	name string
	run  func(context.Context, *host) []Finding
}

func checks() []check {
	return []check{
		{"account", checkAccount},
		{"subids", checkSubids},
		{"idmap-programs", checkIDMapPrograms},
		{"user-namespaces", checkUserNamespaces},
		{"proc", checkProc},
		{"kernel", checkKernel},
		{"modules", checkModules},
		{"runtime-dir", checkRuntimeDir},
		{"linger", checkLinger},
		{"cgroup", checkCgroup},
		{"resources", checkResources},
		{"programs", checkPrograms},
		{"network-program", checkNetworkProgram},
		{"network-policy", checkNetworkPolicy},
		{"tun", checkTun},
		{"ports", checkPorts},
		{"routes", checkRoutes},
		{"mounts", checkMounts},
		{"socket-paths", checkSocketPaths},
		{"data-dir", checkDataDir},
		{"data-ids", checkDataIDs},
		{"disk-space", checkDiskSpace},
		{"open-files", checkOpenFiles},
		{"inotify", checkInotify},
		{"components", checkComponents},
		{"runtime", checkRuntime},
	}
}

// rootCheck is the name of the check that comes before all others and, failing, instead of them.
const rootCheck = "root"

// Names lists the checks in the order of their findings.
func Names() []string {
	names := []string{rootCheck}
	for _, c := range checks() {
		names = append(names, c.name)
	}
	return names
}

// Run runs all checks side by side and returns their findings, grouped in the order of Names; each check has at least
// one. For uid 0 the only finding is that: nothing else is worth saying to root.
func Run(ctx context.Context, in Input) []Finding {
	h := newHost(ctx, in)
	root := checkRoot(h)
	if root.Level == LevelFail {
		return h.finish([]Finding{root})
	}
	list := checks()
	results := make([][]Finding, len(list))
	var wg sync.WaitGroup
	for i, c := range list {
		wg.Go(func() {
			results[i] = c.run(ctx, h)
			for j := range results[i] {
				results[i][j].Check = c.name
			}
		})
	}
	wg.Wait()
	all := []Finding{root}
	for _, r := range results {
		all = append(all, r...)
	}
	all = h.finish(all)
	if in.Deep != nil {
		all = append(all, in.Deep(ctx)...)
	}
	return all
}

func checkRoot(h *host) Finding {
	if h.in.UID != 0 {
		f := pass("run by an ordinary user, uid %d", h.in.UID)
		f.Check = rootCheck
		return f
	}
	f := fail("a node is run by an ordinary user, not by root")
	once := "# once, for an account of its own:"
	if h.probes.InUserNS() {
		f = fail("a node is run by an ordinary user, and uid 0 is root here too: that of another user namespace")
		f.fix.add("# leave that namespace (unshare, a rootless container, a node's own shell) and run it as the account that made it;")
		once = "# or, where this is a container with ids enough for an account of its own, once:"
	}
	f.Check = rootCheck
	f.fix.add(once,
		h.self()+" host setup --user rootlessnode --create-user",
		"# then, each time:",
		h.self()+" host enter --user rootlessnode -- up")
	return f
}

// Err returns nil when no finding is a failure, else one error of class errdefs.ErrPreflight that tells all of them and
// carries one hint: a single block to paste that mends everything.
func Err(findings []Finding) error {
	var faults []error
	var all fix
	for _, f := range findings {
		if f.Level != LevelFail {
			continue
		}
		faults = append(faults, fmt.Errorf("%s: %s", f.Check, f.Message))
		if f.fix.empty() && f.Hint != "" {
			f.fix.lines = strings.Split(f.Hint, "\n") // from Deep, or from JSON
		}
		all.merge(f.fix)
	}
	err := errdefs.WithHint(errors.Join(faults...), all.render())
	return errdefs.Class(errdefs.ErrPreflight, err)
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

// orPass is for checks that gather faults: with none, the one finding is a pass.
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

func (f Finding) hint(lines ...string) Finding {
	f.fix.add(lines...)
	return f
}

// self is how root calls this program.
func (h *host) self() string {
	if h.in.Exe != "" {
		return hostinfo.Quote(h.in.Exe)
	}
	return "rootlessnode"
}

// container is the kind of container whose marks are here. A machine whose file system was made from a container's image has
// them too; where a fault is one that only containers have, that is no matter.
func (h *host) container() string { return hostinfo.DetectContainer(h.path("/")) }

// confined tells of a container whose root cannot change what a machine's root could.
func (h *host) confined() bool { return h.container() != "" && hostinfo.LacksSysAdmin(h.path("/")) }

// unreadable is the finding for a file of the host that cannot be read, which is no reason to refuse.
func unreadable(err error) []Finding {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return []Finding{warn("not checked: %s: %v", pe.Path, pe.Err)}
	}
	return []Finding{warn("not checked: %v", err)}
}

// setupLine is the comment that offers host setup instead of the single lines.
func (h *host) setupLine() string {
	name := "NAME"
	if a, ok, _ := h.account(); ok {
		name = a.Name
	}
	return fmt.Sprintf("# or all that root can do at once: %s%s host setup --user %s", sudoMark, h.self(), name)
}
