package preflight

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// checkPrograms looks for what RootlessKit (ip), the kubelet (mount, umount), and kube-proxy and the CNI plugins (nft or
// iptables) run.
func checkPrograms(_ context.Context, h *host) []Finding {
	var missing []string
	for _, p := range []string{"ip", "mount", "umount"} {
		if h.lookPath(p) == "" {
			missing = append(missing, p)
		}
	}
	nft, iptables := h.lookPath("nft") != "", h.lookPath("iptables") != ""
	switch mode := h.cfg.KubeProxy.Mode; {
	case mode == "nftables" && !nft, mode == "auto" && !nft && !iptables:
		missing = append(missing, "nft")
	case mode == "iptables" && !iptables:
		missing = append(missing, "iptables")
	}
	if len(missing) > 0 {
		f := fail("not found on PATH: %s", strings.Join(missing, ", "))
		f.fix.programs = missing
		return []Finding{f}
	}
	there := []string{"ip", "mount"}
	if nft {
		there = append(there, "nft")
	}
	if iptables { // not needed beside nft, which the CNI plugins then use as well
		there = append(there, "iptables")
	}
	return []Finding{pass("%s are there", strings.Join(there, ", "))}
}

// driverProgram is the program of a network driver; "" for a driver that needs none.
func driverProgram(driver string) string {
	switch driver {
	case config.DriverSlirp, config.DriverPasta, config.DriverLXCUserNIC, config.DriverVPNKit:
		return driver
	}
	return ""
}

func (h *host) driverPath(driver string) string {
	if p := h.lookPath(driverProgram(driver)); p != "" || driver != config.DriverLXCUserNIC {
		return p
	}
	for _, dir := range hostinfo.LXCDirs() {
		if p := filepath.Join(dir, driver); h.exists(p) {
			return h.path(p)
		}
	}
	return ""
}

func checkNetworkProgram(ctx context.Context, h *host) []Finding {
	found := h.networkProgram(ctx)
	if h.cfg.Ports.Driver == config.PortsPesto {
		found = append(found, h.pesto(ctx)...)
	}
	return found
}

// networkProgram looks for the program of the network driver.
func (h *host) networkProgram(ctx context.Context) []Finding {
	driver := h.cfg.Network.Driver
	if driver == config.DriverAuto {
		if driver = h.cfg.Ports.NeedsNetwork(); driver == "" {
			return []Finding{h.autoDriver(ctx)}
		}
	}
	program := driverProgram(driver)
	if program == "" {
		return []Finding{pass("network driver %s needs no program", driver)}
	}
	path := h.driverPath(driver)
	if path == "" {
		f := fail("network driver %s: program not found on PATH", driver)
		if driver != config.DriverVPNKit { // no distribution packages it
			f.fix.programs = []string{program}
		}
		f.fix.add("# or take the built-in driver: network.driver: " + config.DriverGvisor)
		return []Finding{f}
	}
	if driver == config.DriverSlirp || driver == config.DriverPasta { // the others have no option that ends at once
		version, err := h.programVersion(ctx, path)
		if err != nil {
			return []Finding{fail("network driver %s: %s --version: %v", driver, path, err).hint(
				"# install it anew, or take the built-in driver: network.driver: " + config.DriverGvisor)}
		}
		return []Finding{pass("network driver %s: %s", driver, version).with(map[string]string{"driver": driver, "path": path})}
	}
	if driver == config.DriverLXCUserNIC {
		if f, ok := h.lxcPermission(); !ok {
			return []Finding{f}
		}
	}
	return []Finding{pass("network driver %s: %s", driver, path).with(map[string]string{"driver": driver, "path": path})}
}

// lxcPermission tells whether the account may have an interface on the bridge, by a row of its own. Rows of groups are
// left to lxc-user-nic, for which groups count that passwd does not tell.
func (h *host) lxcPermission() (Finding, bool) {
	bridge := h.cfg.Network.LXCBridge
	account, ok, err := h.account()
	if !ok || err != nil {
		return Finding{}, true // the account's check says so
	}
	setUp := func(f Finding) (Finding, bool) {
		f.fix.add(asRoot(h.self() + " host setup --user " + account.Name + " --lxc-user-nic=" + bridge))
		return f, false
	}
	b, err := os.ReadFile(h.path(hostinfo.LXCUsernetFile))
	if err != nil {
		return setUp(fail("network driver %s: %s: %v", config.DriverLXCUserNIC, hostinfo.LXCUsernetFile, errors.Unwrap(err)))
	}
	allowed := slices.ContainsFunc(hostinfo.ParseLXCUsernet(b), func(r hostinfo.LXCUsernetRow) bool {
		return r.Bridge == bridge && r.Count > 0 && (r.Owner == account.Name || strings.HasPrefix(r.Owner, "@"))
	})
	if !allowed {
		return setUp(fail("network driver %s: no row of %s lets %s have an interface on %s",
			config.DriverLXCUserNIC, hostinfo.LXCUsernetFile, account.Name, bridge))
	}
	if err := hostinfo.LXCBridgeFault(h.path("/"), bridge); err != nil {
		return setUp(fail("network driver %s: %v (network.lxcBridge)", config.DriverLXCUserNIC, err))
	}
	return Finding{}, true
}

// pesto asks pasta for the option that pesto needs, by using it: versions are dates, and distributions patch.
func (h *host) pesto(ctx context.Context) []Finding {
	way := "# or forward ports by another driver: ports.driver: " + config.PortsBuiltin
	if h.lookPath(config.PortsPesto) == "" {
		return []Finding{fail("port driver pesto: program not found on PATH; it comes with passt 2026_05_07 or later").hint(way)}
	}
	pasta := h.lookPath(config.DriverPasta)
	if pasta == "" {
		return nil // said already
	}
	if _, err := h.run(ctx, pasta, "--conf-path="+os.DevNull, "--version"); err != nil {
		return []Finding{fail("port driver pesto: %s does not know --conf-path; want passt 2026_05_07 or later", pasta).hint(way)}
	}
	return []Finding{pass("port driver pesto: pasta knows --conf-path")}
}

// autoDriver tells which driver network.driver auto will be.
func (h *host) autoDriver(ctx context.Context) Finding {
	details := map[string]string{"driver": config.DriverGvisor}
	path := h.lookPath(config.DriverSlirp)
	if path == "" {
		return pass("network driver auto: %s, built in (no slirp4netns on PATH)", config.DriverGvisor).with(details)
	}
	version, err := h.programVersion(ctx, path)
	if err != nil {
		f := fail("network driver auto: %s --version: %v", path, err).hint(
			"# or take the built-in driver: network.driver: " + config.DriverGvisor)
		f.fix.programs = []string{config.DriverSlirp}
		return f
	}
	return pass("network driver auto: %s", version).with(map[string]string{"driver": config.DriverSlirp, "path": path})
}

func (h *host) programVersion(ctx context.Context, path string) (string, error) {
	out, err := h.run(ctx, path, "--version")
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(first), nil
}

// checkTun opens the device that gives the node its interface; opening alone makes nothing.
func checkTun(_ context.Context, h *host) []Finding {
	if d := h.cfg.Network.Driver; d == config.DriverLXCUserNIC || d == config.DriverNone {
		return []Finding{pass("network driver %s needs no %s", h.cfg.Network.Driver, hostinfo.TunDevice)}
	}
	f, err := os.OpenFile(h.path(hostinfo.TunDevice), os.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = f.Close()
		return []Finding{pass("%s can be opened", hostinfo.TunDevice)}
	}
	found := fail("%s: %v", hostinfo.TunDevice, errors.Unwrap(err))
	found.fix.setup = true
	switch {
	case errors.Is(err, unix.EPERM): // not EACCES: the mode is no matter
		found.Message = "what started this container does not let it open " + hostinfo.TunDevice
		found.fix = fix{lines: hostinfo.OuterSettings(hostinfo.TunInContainer(h.container()))}
	case h.confined() && errors.Is(err, os.ErrNotExist): // most runtimes let root make it, and open it then
		found.fix.add(hostinfo.OuterSettings(hostinfo.TunInContainer(h.container()))...)
	case errors.Is(err, os.ErrPermission):
		st, statErr := os.Stat(h.path(hostinfo.TunDevice))
		if statErr == nil {
			found.Message = "no access to " + hostinfo.TunDevice + ": mode " + st.Mode().Perm().String() + ", usual is rw-rw-rw-"
		}
		// The device gives no power without CAP_NET_ADMIN in a network namespace (kernel: networking/tuntap.rst).
		found.fix.add(asRoot("chmod 0666 " + hostinfo.TunDevice))
	default: // no node, or a node without its driver
		found.fix.add(loadModules("tun")...)
		found.fix.add(asRoot("mkdir -p "+filepath.Dir(hostinfo.TunDevice)),
			"test -c "+hostinfo.TunDevice+" || "+sudoMark+"mknod -m 0666 "+hostinfo.TunDevice+" c 10 200")
	}
	return []Finding{found}
}
