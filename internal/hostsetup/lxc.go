package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// lxc-user-nic needs a row that allows the account to have interfaces on a bridge (lxc-usernet(5)), and a bridge with a DHCP
// server and an uplink. LXC's lxc-net creates the bridge.
const (
	lxcStep    = "lxc-user-nic"
	lxcService = "lxc-net"
	lxcBridge  = "bridge" // a key of the record
	// lxcInterfaces is the number of interfaces that the account may have on the bridge, one per node.
	lxcInterfaces = 10
)

// lxcNicStep lets the account's nodes use the network driver lxc-user-nic.
func lxcNicStep(p *Plan) (Step, error) {
	e := p.env
	bridge := e.LXCUserNIC
	if bridge == "" { // use the bridge of an earlier run, because a reboot removes the bridge
		bridge = p.record.Steps[lxcStep].After[lxcBridge]
	}
	if bridge == "" && !p.record.has(lxcStep) { // a record without a bridge is from a run that failed
		return Step{}, nil
	}
	row := fmt.Sprintf("%s veth %s %d", e.User, bridge, lxcInterfaces)
	s := Step{
		Name: lxcStep, Title: fmt.Sprintf("let %s connect to the bridge %s", e.User, bridge),
		Why: "network.driver lxc-user-nic uses an interface on a bridge of the host",
		Needed: func() (bool, error) {
			return bridge != "" && (!mayUseBridge(e, bridge) || bridgeFault(e, bridge) != nil), nil
		},
		Do:   func(ctx context.Context) error { return p.setUpLXC(ctx, bridge, row) },
		Undo: func(ctx context.Context) error { return p.undoLXC(ctx) },
	}
	if !mayUseBridge(e, bridge) {
		s.Commands = append(s.Commands, fmt.Sprintf("echo %s >> %s", hostinfo.Quote(row), hostinfo.LXCUsernetFile))
	}
	if bridgeFault(e, bridge) != nil {
		for _, c := range e.lxcNet(true) {
			s.Commands = append(s.Commands, strings.Join(c, " "))
		}
	}
	if !e.systemd {
		s.Note = errdefs.Text("# without systemd the bridge lasts until the next reboot: run host setup at each boot")
	}
	return s, nil
}

func (p *Plan) setUpLXC(ctx context.Context, bridge, row string) error {
	e := p.env
	if err := lxcProgram(e); err != nil {
		return err
	}
	if !mayUseBridge(e, bridge) {
		if err := os.MkdirAll(filepath.Dir(e.path(hostinfo.LXCUsernetFile)), 0o755); err != nil {
			return err
		}
		if err := e.appendRow(hostinfo.LXCUsernetFile, row); err != nil {
			return err
		}
		p.record.add(lxcStep, entry{Rows: map[string][]string{hostinfo.LXCUsernetFile: {row}}})
	}
	done := entry{After: map[string]string{lxcBridge: bridge}}
	if bridgeFault(e, bridge) == nil {
		p.record.add(lxcStep, done)
		return nil
	}
	there := func() bool { return e.exists("/sys/class/net/" + bridge + "/bridge") }
	wasThere := there()
	for _, c := range e.lxcNet(true) {
		if err := e.Run(ctx, c[0], c[1:]...); err != nil {
			return fmt.Errorf("%s: %w", lxcService, err)
		}
	}
	if !wasThere { // otherwise undo must not stop it
		p.record.add(lxcStep, entry{Before: map[string]string{lxcService: "stopped"}, After: map[string]string{lxcService: "started"}})
	}
	if !there() {
		return fmt.Errorf("bridge %s not found: %s created another one (LXC_BRIDGE in /etc/default/lxc-net)", bridge, lxcService)
	}
	p.record.add(lxcStep, done)
	return nil
}

// lxcProgram returns an error unless lxc-user-nic is installed and set-uid root.
func lxcProgram(e *env) error {
	var dirs []string
	for _, d := range hostinfo.LXCDirs() {
		dirs = append(dirs, e.path(d))
	}
	path := hostinfo.FindProgram(lxcStep, dirs...)
	if path == "" {
		return fmt.Errorf("program %s not found: %s", lxcStep, e.distro().InstallCommand([]string{lxcStep, "dnsmasq"}))
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_ISUID == 0 {
		return fmt.Errorf("%s is not set-uid root, so it cannot create interfaces: chmod u+s %s", path, path)
	}
	return nil
}

// undoLXC removes the row, and stops lxc-net if host setup started it and no account may use it any more.
func (p *Plan) undoLXC(ctx context.Context) error {
	e, did := p.env, p.record.Steps[lxcStep]
	faults := []error{e.removeRows(hostinfo.LXCUsernetFile, did.Rows[hostinfo.LXCUsernetFile])}
	b, _ := os.ReadFile(e.path(hostinfo.LXCUsernetFile))
	rest := strings.TrimSpace(string(b))
	if rest == "" && e.exists(hostinfo.LXCUsernetFile) && len(did.Rows) > 0 {
		faults = append(faults, os.Remove(e.path(hostinfo.LXCUsernetFile)))
	}
	if did.Before[lxcService] == "stopped" && rest == "" {
		for _, c := range e.lxcNet(false) {
			faults = append(faults, e.Run(ctx, c[0], c[1:]...))
		}
	}
	return errors.Join(faults...)
}

// lxcNet returns the commands that start or stop LXC's bridge. To start it they restart lxc-net, because lxc-net considers itself
// started if a certain file exists, even if its bridge or DHCP server is gone. They first remove the pid file of the DHCP server,
// because lxc-net would kill any process that has this pid now.
func (e *env) lxcNet(start bool) [][]string {
	var commands [][]string
	run := func(c ...string) { commands = append(commands, c) }
	if start && e.exists(hostinfo.LXCDHCPPidFile) {
		run("rm", "-f", e.path(hostinfo.LXCDHCPPidFile))
	}
	switch unit := lxcService + ".service"; {
	case e.systemd && start:
		run("systemctl", "enable", unit)
		run("systemctl", "restart", unit)
	case e.systemd:
		run("systemctl", "disable", "--now", unit)
	default:
		run(e.lxcNetProgram(), map[bool]string{true: "restart", false: "stop"}[start])
	}
	return commands
}

func (e *env) lxcNetProgram() string {
	for _, dir := range hostinfo.LXCDirs() {
		if p := filepath.Join(dir, lxcService); e.exists(p) {
			return p
		}
	}
	return filepath.Join(hostinfo.LXCDirs()[0], lxcService)
}

// bridgeFault returns why interfaces on the bridge would get no address, or nil.
func bridgeFault(e *env, bridge string) error { return hostinfo.LXCBridgeFault(e.path("/"), bridge) }

// mayUseBridge reports whether a row of lxc-usernet(5) allows the account interfaces on the bridge.
func mayUseBridge(e *env, bridge string) bool {
	b, err := os.ReadFile(e.path(hostinfo.LXCUsernetFile))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(hostinfo.ParseLXCUsernet(b), func(r hostinfo.LXCUsernetRow) bool {
		return r.Owner == e.User && r.Type == "veth" && r.Bridge == bridge && r.Count > 0
	})
}
