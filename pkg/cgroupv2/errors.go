package cgroupv2

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// NotDelegatedError describes why no cgroup can be used. Detect returns it with class errdefs.ErrPreflight and a hint; use
// errors.As.
type NotDelegatedError struct {
	// Self is the directory of the process's cgroup. Owner and OwnerUID are its owner.
	Self     string
	Owner    string
	OwnerUID int
	// NotWritable lists the directory and files that the account must be able to write, but cannot.
	NotWritable []string
	// ReadOnly: the whole tree is mounted read-only.
	ReadOnly bool
	// TreeRoot: Self is the root of the hierarchy, which belongs to the host.
	TreeRoot bool
	// Prepared is the directory that `host setup` created for the account, if any. The process only has to enter it.
	Prepared string
	// Systemd: the host runs systemd, but the account's user manager cannot be reached in RuntimeDir.
	Systemd    bool
	RuntimeDir string
}

// Error returns all facts on one line.
func (e *NotDelegatedError) Error() string {
	var b strings.Builder
	b.WriteString("no cgroup is delegated to this account: own cgroup " + e.Self)
	switch {
	case e.ReadOnly:
		b.WriteString(" is in a tree mounted read-only")
	case e.TreeRoot:
		b.WriteString(" is the root of the tree")
	default:
		fmt.Fprintf(&b, " is owned by %s; not writable: %s", e.Owner, strings.Join(e.NotWritable, ", "))
	}
	if e.Systemd {
		b.WriteString("; no systemd user manager answers in " + e.RuntimeDir)
	}
	if e.Prepared != "" {
		b.WriteString("; " + e.Prepared + " is prepared but not entered")
	}
	return b.String()
}

func notDelegated(h Host, o Options) error {
	e := &NotDelegatedError{Self: h.SelfDir(), ReadOnly: h.ReadOnly, RuntimeDir: o.RuntimeDir}
	e.TreeRoot = isRoot(e.Self)
	e.NotWritable = notWritable(e.Self)
	e.Owner, e.OwnerUID = ownerOf(e.Self)
	_, err := os.Stat(o.Booted)
	e.Systemd = err == nil
	if p := h.preparedFor(os.Geteuid()); isDelegated(p) {
		e.Prepared = p
	}
	return errdefs.Preflight("%w", e).With(e.hint(accountName()))
}

func (e *NotDelegatedError) hint(account string) errdefs.Hint {
	enter := errdefs.Step{Action: errdefs.Start, As: account, Sudo: true}
	switch {
	case e.ReadOnly:
		return errdefs.Text("# Mount the cgroup2 tree writable. For a container, this depends on how it is started:").
			Text(hostinfo.OuterSettings(hostinfo.WritableCgroups(hostinfo.DetectContainer("/")))...)
	case e.Prepared != "":
		return append(errdefs.Text("# Enter the prepared cgroup:"), enter)
	case e.Systemd:
		return append(errdefs.Text("# Let systemd run this account's user manager and delegate to it, once:"), setUp(account)).
			Text("sudo loginctl enable-linger "+hostinfo.Quote(account),
				"# then log in again (ssh or machinectl, not su), so that XDG_RUNTIME_DIR is set. To do it manually:").
			Text(delegateCommands()...)
	}
	return append(errdefs.Text("# Let root prepare a cgroup for this account, once, and enter it:"), setUp(account), enter)
}

func setUp(account string) errdefs.Step {
	return errdefs.Step{Action: errdefs.SetUpHost, Args: []string{account}, Sudo: true}
}

// Hint returns how to get the missing controllers. It is empty if none is missing.
func (d Delegation) Hint() errdefs.Hint {
	if len(d.Missing) == 0 {
		return nil
	}
	var h errdefs.Hint
	if len(d.HeldByV1) > 0 {
		h = h.Text("# cgroup v1 holds " + strings.Join(d.HeldByV1, ", ") +
			"; boot with the kernel argument systemd.unified_cgroup_hierarchy=1 to free them.")
	}
	if len(d.Absent) > 0 {
		h = h.Text("# " + strings.Join(d.Absent, ", ") +
			": not available in the cgroup tree. The kernel was built without it, or it was not delegated to this container.")
	}
	if rest := d.undelegated(); len(rest) > 0 {
		lost := "# " + rest[0] + " is not delegated to " + d.LostAt
		if d.Source == SourcePrepared {
			return append(h.Text(lost+". Have root prepare the cgroup again:"), setUp(accountName()))
		}
		return h.Text(lost + ". Have systemd delegate it:").Text(delegateCommands()...)
	}
	return h
}

// DelegateDropIn returns the path and the text of a drop-in that makes systemd delegate the controllers of a node to user
// managers (systemd.resource-control(5), Delegate=; cpuset needs systemd 244).
func DelegateDropIn() (path, text string) {
	return "/etc/systemd/system/user@.service.d/delegate.conf",
		"[Service]\nDelegate=cpu cpuset io memory pids\n"
}

func delegateCommands() []string {
	path, text := DelegateDropIn()
	dir := path[:strings.LastIndexByte(path, '/')]
	return []string{"sudo mkdir -p " + dir, fmt.Sprintf("printf %q | sudo tee %s", text, path), "sudo systemctl daemon-reload", "# then log out and in."}
}

func ownerOf(path string) (string, int) {
	st, err := os.Stat(path)
	if err != nil {
		return "an unknown user", -1
	}
	uid := int(st.Sys().(*syscall.Stat_t).Uid)
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return fmt.Sprintf("%s (uid %d)", u.Username, uid), uid
	}
	return fmt.Sprintf("uid %d", uid), uid
}

func accountName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Geteuid())
}
