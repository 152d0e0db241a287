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

// confinement selects how slirp4netns is confined. It parses the packets of all pods and should not have access to the account's files.
type confinement struct{ sandbox, seccomp bool }

// confinements returns the confinements to try, the strictest first. The sandbox is dropped before the seccomp filter, because
// containers forbid the mounts of the sandbox more often.
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

// slirp is RootlessKit's driver for slirp4netns with the strictest confinement that the config allows and the host permits. It finds
// out what the host permits by starting the program, which covers policies of containers, old kernels and old versions of slirp4netns.
type slirp struct {
	ways []confinement
	// newDriver returns RootlessKit's driver; its program writes to w.
	newDriver func(w io.Writer, c confinement) (network.ParentDriver, error)
	// removeTap removes the device that a failed attempt created in the child's network namespace.
	removeTap func(childPID int) error
	mtu       int
	out       io.Writer
	log       logrus.FieldLogger

	mu       sync.Mutex
	driver   network.ParentDriver // nil until an attempt succeeds
	warnings []string
}

// slirpDriver returns the driver, or an error if the program does not support any of the confinements.
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
	_, err := d.newDriver(d.out, d.ways[len(d.ways)-1]) // the last one has the fewest requirements
	return d, err
}

// avoidSandbox removes the confinements with a sandbox, unless the config requires it, because slirp4netns would not find the name
// servers in the sandbox.
func (d *slirp) avoidSandbox(wanted config.AutoBool, why error) {
	switch wanted {
	case config.Off:
	case config.On:
		d.warn("network.slirpSandbox: %v; pods may be unable to resolve names", why)
	default:
		d.warn("slirp4netns runs without its sandbox: %v", why)
		d.ways = slices.DeleteFunc(d.ways, func(c confinement) bool { return c.sandbox })
	}
}

// ConfigureNetwork implements network.ParentDriver. RootlessKit calls it once.
func (d *slirp) ConfigureNetwork(childPID int, stateDir, netns string) (*messages.ParentInitNetworkDriverCompleted, func() error, error) {
	var refused error // the error of the strictest confinement
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
		d.log.WithError(err).WithFields(logrus.Fields{"sandbox": way.sandbox, "seccomp": way.seccomp}).Debug("start slirp4netns")
		if err := d.removeTap(childPID); err != nil {
			d.log.WithError(err).Debug("remove the device of the failed attempt")
		}
	}
	return nil, nil, errors.New("start slirp4netns: no confinement to try") // confinements returns at least one
}

func (d *slirp) try(way confinement, childPID int, stateDir, netns string) (*messages.ParentInitNetworkDriverCompleted, func() error, error) {
	output := &tail{w: d.out}
	driver, err := d.newDriver(output, way)
	if err != nil {
		return nil, nil, err
	}
	msg, cleanup, err := driver.ConfigureNetwork(childPID, stateDir, netns)
	if err != nil {
		if text := output.last(); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return nil, cleanup, err
	}
	d.mu.Lock()
	d.driver = driver
	d.mu.Unlock()
	return msg, cleanup, nil
}

// report warns about the parts of the confinement that were dropped.
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
	err = errdefs.Preflight("start slirp4netns: %w", err)
	if way.parts() == 0 {
		return err
	}
	return errdefs.WithSteps(err, errdefs.Do(errdefs.Start, "network.slirpSandbox=auto", "network.slirpSeccomp=auto").Note("as far as the host permits"))
}

func (d *slirp) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	d.log.Warn(text)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.warnings = append(d.warnings, text)
}

// Warnings returns the warnings for the node's status. Call it after ConfigureNetwork has returned.
func (d *slirp) Warnings() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.warnings)
}

// Info implements network.ParentDriver.
func (d *slirp) Info(ctx context.Context) (*api.NetworkDriverInfo, error) {
	d.mu.Lock()
	driver := d.driver
	d.mu.Unlock()
	if driver == nil {
		return &api.NetworkDriverInfo{Driver: slirp4netns.DriverName}, nil
	}
	return driver.Info(ctx)
}

// MTU returns the MTU of the tap device in bytes.
func (d *slirp) MTU() int { return d.mtu }

// removeTap removes the tap device with the same tools with which RootlessKit creates it (pkg/network/parentutils).
func removeTap(childPID int) error {
	out, err := exec.Command("nsenter", "-t", strconv.Itoa(childPID), "-n", "-m", "-U", "--preserve-credentials",
		"ip", "tuntap", "del", "name", tapName, "mode", "tap").CombinedOutput()
	if err != nil {
		return fmt.Errorf("remove the device %s: %w: %s", tapName, err, bytes.TrimSpace(out))
	}
	return nil
}

// sandboxDirs returns the directories of the host that are visible in the sandbox of slirp4netns (slirp4netns(1)).
func sandboxDirs() []string { return []string{"etc", "run"} }

// maxLinks is the maximum number of symbolic links in a path, as in the kernel (path_resolution(7)).
const maxLinks = 40

// insideSandbox returns an error if the symbolic links in path lead to a directory that is not in the sandbox, such as /var/run or a
// package store. It returns nil if the file does not exist, because then the sandbox makes no difference.
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
		if strings.Count(at, "/") < 2 { // /etc and /run are directories in the sandbox
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

// tail is a writer that writes to w and keeps the last bytes.
type tail struct {
	w  io.Writer
	mu sync.Mutex
	b  []byte
}

// tailSize is the number of bytes that tail keeps, and tailLines the number of lines that last returns.
const tailSize, tailLines = 1 << 10, 3

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-tailSize):]
	t.mu.Unlock()
	return t.w.Write(p)
}

// last returns the last lines without warnings, joined with "; ".
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
