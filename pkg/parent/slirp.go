package parent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/rootless-containers/rootlesskit/v3/pkg/api"
	"github.com/rootless-containers/rootlesskit/v3/pkg/messages"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/slirp4netns"
	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// confinement is how slirp4netns, which parses every packet of every pod, is kept from the account's files.
type confinement struct{ sandbox, seccomp bool }

// confinements lists what to try, the strictest first. A container refuses the sandbox's mounts more often than a seccomp
// filter, so the sandbox is given up first.
func confinements(n config.Network) []confinement {
	var ways []confinement
	for _, sandbox := range n.SlirpSandbox.Choices() {
		for _, seccomp := range n.SlirpSeccomp.Choices() {
			ways = append(ways, confinement{sandbox, seccomp})
		}
	}
	slices.SortStableFunc(ways, func(a, b confinement) int { return b.parts() - a.parts() })
	if len(ways) == 4 {
		ways[1], ways[2] = ways[2], ways[1]
	}
	return ways
}

func (c confinement) parts() int {
	n := 0
	for _, on := range []bool{c.sandbox, c.seccomp} {
		if on {
			n++
		}
	}
	return n
}

// slirp is RootlessKit's driver for slirp4netns, confined as far as the config wants and the host permits. What the host permits is
// found by starting the program: a container's policy, an old kernel and an old slirp4netns are alike in that.
type slirp struct {
	ways []confinement
	// newDriver makes RootlessKit's driver, whose program writes to w.
	newDriver func(w io.Writer, c confinement) (network.ParentDriver, error)
	// removeTap removes the device that a failed attempt left in the child's network namespace.
	removeTap func(childPID int) error
	mtu       int
	out       io.Writer
	log       logrus.FieldLogger

	mu       sync.Mutex
	driver   network.ParentDriver // nil until one of the ways works
	warnings []string
}

// slirpDriver returns the driver of a run, or an error where the program cannot be used in any of the wanted ways.
func (r *run) slirpDriver(program string, ipnet *net.IPNet) (*slirp, error) {
	n := r.Config.Network
	d := &slirp{ways: confinements(n), mtu: n.MTU, out: r.LogWriter, log: r.Log, removeTap: removeTap}
	d.newDriver = func(w io.Writer, c confinement) (network.ParentDriver, error) {
		return slirp4netns.NewParentDriver(w, program, n.MTU, ipnet, tapName, !n.AllowHostLoopback,
			r.portSocket(config.DriverSlirp), c.sandbox, c.seccomp, n.IPv6)
	}
	if err := insideSandbox("/etc/resolv.conf"); err != nil {
		d.avoidSandbox(n.SlirpSandbox, err)
	}
	_, err := d.newDriver(d.out, d.ways[len(d.ways)-1]) // the least that is needed
	return d, err
}

// avoidSandbox takes the ways with a sandbox out because it would have no name server, unless the config insists.
func (d *slirp) avoidSandbox(wanted config.AutoBool, why error) {
	switch wanted {
	case config.Off:
	case config.On:
		d.warn("network.slirpSandbox: %v: pods may be unable to resolve names", why)
	default:
		d.warn("slirp4netns runs without its sandbox: %v", why)
		d.ways = slices.DeleteFunc(d.ways, func(c confinement) bool { return c.sandbox })
	}
}

// ConfigureNetwork is RootlessKit's call, made once.
func (d *slirp) ConfigureNetwork(childPID int, stateDir, netns string) (*messages.ParentInitNetworkDriverCompleted, func() error, error) {
	var refused error // why the strictest way does not work
	for i, way := range d.ways {
		msg, cleanup, err := d.try(way, childPID, stateDir, netns)
		if err == nil {
			d.report(way, refused)
			return msg, cleanup, nil
		}
		if i == 0 {
			refused = err
		}
		if cleanup != nil {
			err = errors.Join(err, cleanup())
		}
		if i == len(d.ways)-1 {
			return nil, nil, d.failed(way, err)
		}
		d.log.WithError(err).WithFields(logrus.Fields{"sandbox": way.sandbox, "seccomp": way.seccomp}).Debug("slirp4netns does not start")
		if err := d.removeTap(childPID); err != nil {
			d.log.WithError(err).Debug("remove the device of the failed attempt")
		}
	}
	return nil, nil, errors.New("slirp4netns: no way to start it is left") // confinements returns at least one
}

func (d *slirp) try(way confinement, childPID int, stateDir, netns string) (*messages.ParentInitNetworkDriverCompleted, func() error, error) {
	said := &tail{w: d.out}
	driver, err := d.newDriver(said, way)
	if err != nil {
		return nil, nil, err
	}
	msg, cleanup, err := driver.ConfigureNetwork(childPID, stateDir, netns)
	if err != nil {
		if text := said.last(); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return nil, cleanup, err
	}
	d.mu.Lock()
	d.driver = driver
	d.mu.Unlock()
	return msg, cleanup, nil
}

// report warns of the parts that were given up.
func (d *slirp) report(way confinement, refused error) {
	best := d.ways[0]
	var parts []string
	if best.sandbox && !way.sandbox {
		parts = append(parts, "its sandbox")
	}
	if best.seccomp && !way.seccomp {
		parts = append(parts, "its seccomp filter")
	}
	if len(parts) > 0 {
		d.warn("slirp4netns runs without %s: %v", strings.Join(parts, " and "), refused)
	}
}

func (d *slirp) failed(way confinement, err error) error {
	err = errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("start slirp4netns: %w", err))
	if way.parts() == 0 {
		return err
	}
	return errdefs.WithHint(err, "rootlessnode up --set network.slirpSandbox=auto --set network.slirpSeccomp=auto    # as far as the host permits")
}

func (d *slirp) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	d.log.Warn(text)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.warnings = append(d.warnings, text)
}

// Warnings are for the node's status, once ConfigureNetwork has returned.
func (d *slirp) Warnings() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.warnings)
}

// Info is what RootlessKit's API says of the network.
func (d *slirp) Info(ctx context.Context) (*api.NetworkDriverInfo, error) {
	d.mu.Lock()
	driver := d.driver
	d.mu.Unlock()
	if driver == nil {
		return &api.NetworkDriverInfo{Driver: slirp4netns.DriverName}, nil
	}
	return driver.Info(ctx)
}

// MTU is the tap device's, in bytes.
func (d *slirp) MTU() int { return d.mtu }

// removeTap works as RootlessKit makes the device (pkg/network/parentutils).
func removeTap(childPID int) error {
	out, err := exec.Command("nsenter", "-t", strconv.Itoa(childPID), "-n", "-m", "-U", "--preserve-credentials",
		"ip", "tuntap", "del", "name", tapName, "mode", "tap").CombinedOutput()
	if err != nil {
		return fmt.Errorf("remove the device %s: %w: %s", tapName, err, bytes.TrimSpace(out))
	}
	return nil
}

// sandboxDirs are the directories of the host that slirp4netns keeps in its sandbox (slirp4netns(1)).
func sandboxDirs() []string { return []string{"etc", "run"} }

// maxLinks is the kernel's own limit (path_resolution(7)).
const maxLinks = 40

// insideSandbox returns an error where path leads, by symbolic links, through a directory that the sandbox does not have:
// /var/run is such a one, and so is a store of packages. A missing file is missing with a sandbox and without.
func insideSandbox(path string) error { return insideSandboxOf("/", path) }

func insideSandboxOf(root, path string) error {
	rest, at := strings.Split(strings.Trim(path, "/"), "/"), ""
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		next := filepath.Join("/", at, name)
		if top, _, _ := strings.Cut(strings.TrimPrefix(next, "/"), "/"); next != "/" && !slices.Contains(sandboxDirs(), top) {
			return fmt.Errorf("%s leads to %s, which is not in the sandbox", path, next)
		}
		at = next
		if strings.Count(at, "/") < 2 { // /etc and /run: the sandbox makes directories of them, whatever they are
			continue
		}
		target, err := os.Readlink(filepath.Join(root, at))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil { // not a link
			continue
		}
		if links++; links > maxLinks {
			return fmt.Errorf("%s: too many symbolic links", path)
		}
		rest = append(strings.Split(target, "/"), rest...)
		if at = filepath.Dir(at); strings.HasPrefix(target, "/") {
			at = "/"
		}
	}
	return nil
}

// tail passes on what a program writes and keeps the end of it.
type tail struct {
	w  io.Writer
	mu sync.Mutex
	b  []byte
}

// tailSize, in bytes, and tailLines are enough for a program to say why it ends.
const tailSize, tailLines = 1 << 10, 3

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-tailSize):]
	t.mu.Unlock()
	return t.w.Write(p)
}

// last returns the last lines, as one.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var lines []string
	for line := range strings.Lines(string(t.b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "WARNING") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-tailLines):], "; ")
}
