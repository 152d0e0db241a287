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
	"github.com/rootlessnode/rootlessnode/internal/trial"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// checkPrograms checks for the programs that RootlessKit and the kubelet run, and that kube-proxy and the CNI plugins run (nft or
// iptables).
func checkPrograms(ctx context.Context, h *host) []Finding {
	var missing []string
	required := hostinfo.NodePrograms()
	if createsTap(h.cfg) {
		required = append(required, hostinfo.TapProgram)
	}
	for _, p := range required {
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
	t := h.tried(ctx)
	if fault, ok := t.fault(trial.StepMount); ok {
		f := fail("mount and umount do not work: %v", fault)
		f.fix.programs = []string{"mount", "umount"}
		return []Finding{f}
	}
	_, noTun := t.fault(trial.StepTun) // reported by check tun
	if fault, ok := t.fault(trial.StepEnter); ok && !noTun {
		f := fail("%s and ip cannot create a device in another network namespace: %v", hostinfo.TapProgram, fault)
		f.fix.programs = []string{hostinfo.TapProgram, "ip"}
		return []Finding{f}
	}
	there := []string{"ip", "mount"}
	if nft {
		there = append(there, "nft")
	}
	if iptables { // optional if nft is installed, because the CNI plugins use nft then
		there = append(there, "iptables")
	}
	return []Finding{pass("%s are installed", strings.Join(there, ", "))}
}

// createsTap reports whether RootlessKit creates the tap device, rather than the network driver.
func createsTap(c *config.NodeConfig) bool {
	driver := c.Network.Driver
	if driver == config.DriverAuto {
		driver = c.Ports.NeedsNetwork()
	}
	return driver == "" || driver == config.DriverSlirp || driver == config.DriverGvisor
}

// driverProgram returns the program of a network driver, or "" if the driver needs none.
func driverProgram(driver string) string {
	switch driver {
	case config.DriverSlirp, config.DriverPasta, config.DriverLXCUserNIC, config.DriverVPNKit:
		return driver
	}
	return ""
}

func driverPath(h *host, driver string) string {
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
	found := networkProgram(ctx, h)
	if h.in.DriverFault != nil {
		found = []Finding{failure(h.in.DriverFault)}
	}
	if fault, ok := h.tried(ctx).fault(trial.StepUplink); ok {
		f := fail("slirp4netns cannot connect a network namespace: %v", fault).hint("# or use the built-in driver: network.driver: " + config.DriverGvisor)
		f.fix.programs = []string{config.DriverSlirp}
		found = []Finding{f}
	}
	if h.cfg.Ports.Driver == config.PortsPesto {
		found = append(found, checkPesto(ctx, h)...)
	}
	return found
}

// networkProgram checks the program of the network driver.
func networkProgram(ctx context.Context, h *host) []Finding {
	driver := h.cfg.Network.Driver
	if driver == config.DriverAuto {
		if driver = h.cfg.Ports.NeedsNetwork(); driver == "" {
			return []Finding{autoDriver(ctx, h)}
		}
	}
	program := driverProgram(driver)
	if program == "" {
		return []Finding{pass("network driver %s needs no program", driver)}
	}
	path := driverPath(h, driver)
	if path == "" {
		f := fail("network driver %s: program not found on PATH", driver)
		if driver != config.DriverVPNKit { // no distribution packages it
			f.fix.programs = []string{program}
		}
		f.fix.add("# or use the built-in driver: network.driver: " + config.DriverGvisor)
		return []Finding{f}
	}
	if driver == config.DriverSlirp || driver == config.DriverPasta { // the others have no --version option
		version, err := programVersion(ctx, h, path)
		if err != nil {
			return []Finding{fail("network driver %s: %s --version: %v", driver, path, err).hint(
				"# reinstall it, or use the built-in driver: network.driver: " + config.DriverGvisor)}
		}
		return []Finding{pass("network driver %s: %s", driver, version).with(map[string]string{"driver": driver, "path": path})}
	}
	if driver == config.DriverLXCUserNIC {
		if f, ok := lxcPermission(h); !ok {
			return []Finding{f}
		}
	}
	return []Finding{pass("network driver %s: %s", driver, path).with(map[string]string{"driver": driver, "path": path})}
}

// lxcPermission reports whether the account may have an interface on the bridge. Any row of a group counts as permission,
// because the groups of the account are not known here.
func lxcPermission(h *host) (Finding, bool) {
	bridge := h.cfg.Network.LXCBridge
	account, ok, err := h.account()
	if !ok || err != nil {
		return Finding{}, true // reported by check account
	}
	setUp := func(f Finding) (Finding, bool) {
		f.fix.steps = append(f.fix.steps, errdefs.Step{Action: errdefs.SetUpHost, Args: []string{account.Name, "lxc-user-nic=" + bridge}, Sudo: true})
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
		return setUp(fail("network driver %s: no row of %s allows %s an interface on %s",
			config.DriverLXCUserNIC, hostinfo.LXCUsernetFile, account.Name, bridge))
	}
	if err := hostinfo.LXCBridgeFault(h.path("/"), bridge); err != nil {
		return setUp(fail("network driver %s: %v (network.lxcBridge)", config.DriverLXCUserNIC, err))
	}
	return Finding{}, true
}

// checkPesto checks that pasta has the option that pesto needs by using it. The version is not reliable, because distributions
// backport patches.
func checkPesto(ctx context.Context, h *host) []Finding {
	way := "# or use another port driver: ports.driver: " + config.PortsBuiltin
	if h.lookPath(config.PortsPesto) == "" {
		return []Finding{fail("port driver pesto: program not found on PATH; it is part of passt 2026_05_07 or later").hint(way)}
	}
	pasta := h.lookPath(config.DriverPasta)
	if pasta == "" {
		return nil // reported by networkProgram
	}
	if _, err := h.run(ctx, pasta, "--conf-path="+os.DevNull, "--version"); err != nil {
		return []Finding{fail("port driver pesto: %s does not support --conf-path; passt 2026_05_07 or later is required", pasta).hint(way)}
	}
	return []Finding{pass("port driver pesto: pasta supports --conf-path")}
}

// autoDriver reports the driver that network.driver auto selects.
func autoDriver(ctx context.Context, h *host) Finding {
	details := map[string]string{"driver": config.DriverGvisor}
	path := h.lookPath(config.DriverSlirp)
	if path == "" {
		return pass("network driver auto: %s, built in (no slirp4netns on PATH)", config.DriverGvisor).with(details)
	}
	version, err := programVersion(ctx, h, path)
	if err != nil {
		f := fail("network driver auto: %s --version: %v", path, err).hint(
			"# or use the built-in driver: network.driver: " + config.DriverGvisor)
		f.fix.programs = []string{config.DriverSlirp}
		return f
	}
	return pass("network driver auto: %s", version).with(map[string]string{"driver": config.DriverSlirp, "path": path})
}

func programVersion(ctx context.Context, h *host, path string) (string, error) {
	out, err := h.run(ctx, path, "--version")
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(first), nil
}

// needsTun reports whether the node's network interface is a tap device.
func needsTun(c *config.NodeConfig) bool {
	return c.Network.Driver != config.DriverLXCUserNIC && c.Network.Driver != config.DriverNone
}

// checkTun opens the device with which the node creates its network interface, and creates an interface.
func checkTun(ctx context.Context, h *host) []Finding {
	if !needsTun(h.cfg) {
		return []Finding{pass("network driver %s needs no %s", h.cfg.Network.Driver, hostinfo.TunDevice)}
	}
	f, err := os.OpenFile(h.path(hostinfo.TunDevice), os.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = f.Close()
		if fault, ok := h.tried(ctx).fault(trial.StepTun); ok {
			return []Finding{h.tunFault(fault)}
		}
		return []Finding{pass("%s creates network devices", hostinfo.TunDevice)}
	}
	found := fail("%s: %v", hostinfo.TunDevice, errors.Unwrap(err))
	found.fix.setup = true
	switch {
	case errors.Is(err, unix.EPERM): // not EACCES: the mode is not the cause
		found.Message = "the container runtime does not let this container open " + hostinfo.TunDevice
		found.fix = fix{}
		found.fix.add(hostinfo.OuterSettings(hostinfo.TunInContainer(h.container()))...)
	case h.confined() && errors.Is(err, os.ErrNotExist): // most runtimes let root create and open it
		found.fix.add(hostinfo.OuterSettings(hostinfo.TunInContainer(h.container()))...)
	case errors.Is(err, os.ErrPermission):
		st, statErr := os.Stat(h.path(hostinfo.TunDevice))
		if statErr == nil {
			found.Message = "no access to " + hostinfo.TunDevice + ": mode " + st.Mode().Perm().String() + ", usually rw-rw-rw-"
		}
		// The device grants no privileges without CAP_NET_ADMIN in a network namespace (kernel: networking/tuntap.rst).
		found.fix.add(asRoot("chmod 0666 " + hostinfo.TunDevice))
	default: // no device file, or its driver is not loaded
		found.fix.add(loadModules("tun")...)
		found.fix.add(asRoot("mkdir -p "+filepath.Dir(hostinfo.TunDevice)),
			"test -c "+hostinfo.TunDevice+" || "+sudoMark+"mknod -m 0666 "+hostinfo.TunDevice+" c 10 200")
	}
	return []Finding{found}
}
