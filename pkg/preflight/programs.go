package preflight

import (
	"context"
	"errors"
	"os"
	"path/filepath"
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
	if !iptables {
		// The portmap and bridge plugins and the kubelet's own chains want it; nftables serves Services without.
		f := warn("not found on PATH: iptables; hostPort and masquerading by CNI plugins may not work")
		f.fix.programs = []string{"iptables"}
		return []Finding{f}
	}
	return []Finding{pass("ip, mount, %s are there", map[bool]string{true: "nft, iptables", false: "iptables"}[nft])}
}

// driverProgram is the program of a network driver; "" for a driver that needs none.
func driverProgram(driver string) string {
	switch driver {
	case config.DriverSlirp, config.DriverPasta, config.DriverLXCUserNIC, config.DriverVPNKit:
		return driver
	}
	return ""
}

// lxcUserNICDirs are where distributions keep lxc-user-nic, which is not meant to be typed.
func lxcUserNICDirs() []string {
	return []string{"/usr/lib/x86_64-linux-gnu/lxc", "/usr/lib/aarch64-linux-gnu/lxc", "/usr/libexec/lxc", "/usr/lib/lxc"}
}

func (h *host) driverPath(driver string) string {
	if p := h.lookPath(driverProgram(driver)); p != "" || driver != config.DriverLXCUserNIC {
		return p
	}
	for _, dir := range lxcUserNICDirs() {
		if p := filepath.Join(dir, driver); h.exists(p) {
			return h.path(p)
		}
	}
	return ""
}

func checkNetworkProgram(ctx context.Context, h *host) []Finding {
	driver := h.cfg.Network.Driver
	if driver == config.DriverAuto {
		return []Finding{h.autoDriver(ctx)}
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
	return []Finding{pass("network driver %s: %s", driver, path).with(map[string]string{"driver": driver, "path": path})}
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
	if h.cfg.Network.Driver == config.DriverLXCUserNIC {
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
	case errors.Is(err, os.ErrPermission):
		st, statErr := os.Stat(h.path(hostinfo.TunDevice))
		if statErr == nil {
			found.Message = "no access to " + hostinfo.TunDevice + ": mode " + st.Mode().Perm().String() + ", usual is rw-rw-rw-"
		}
		// The device gives no power without CAP_NET_ADMIN in a network namespace (kernel: networking/tuntap.rst).
		found.fix.add(asRoot("chmod 0666 " + hostinfo.TunDevice))
	default: // no node, or a node without its driver
		found.fix.add(asRoot("modprobe tun"),
			asRoot("mkdir -p "+filepath.Dir(hostinfo.TunDevice)),
			"test -c "+hostinfo.TunDevice+" || "+sudoMark+"mknod -m 0666 "+hostinfo.TunDevice+" c 10 200")
	}
	return []Finding{found}
}
