package noderole

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// unenforcedSettings returns the config fields that have no effect in this cgroup, because their controller is missing
// or the kernel rejected the value.
func unenforcedSettings(cfg *config.NodeConfig, c layout.CgroupInfo) []string {
	out := cfg.Resources.Unenforced(c.Unenforced)
	for _, name := range slices.Sorted(maps.Keys(c.Refused)) {
		if field := "resources." + name; !slices.Contains(out, field) {
			out = append(out, field)
		}
	}
	return out
}

// unenforcedTexts describes the limits that are not enforced. It returns nil if all are enforced.
func unenforcedTexts(cfg *config.NodeConfig, c layout.CgroupInfo) []string {
	var out []string
	if len(c.Unenforced) > 0 {
		out = append(out, fmt.Sprintf("cgroup controllers %v are not delegated: pod limits that need them are accepted but not enforced", c.Unenforced))
	}
	if fields := unenforcedSettings(cfg, c); len(fields) > 0 {
		text := fmt.Sprintf("not enforced on this node: %s", strings.Join(fields, ", "))
		for _, name := range slices.Sorted(maps.Keys(c.Refused)) {
			if !slices.Contains(c.Unenforced, name) { // otherwise the missing controller is the reason
				text += fmt.Sprintf("; the kernel rejects resources.%s: %s", name, c.Refused[name])
			}
		}
		out = append(out, text)
	}
	return out
}

// eventUnenforced is the reason of Events about limits that are not enforced.
const eventUnenforced = "LimitsNotEnforced"

// unenforcedEvents returns the Events on the Node about limits that are not enforced. By convention the UID of a Node
// in an Event is its name.
func unenforcedEvents(cfg *config.NodeConfig, c layout.CgroupInfo) []kubeapi.Event {
	var out []kubeapi.Event
	for _, text := range unenforcedTexts(cfg, c) {
		out = append(out, kubeapi.Event{
			Object: kubeapi.ObjectRef{Kind: "Node", Name: cfg.NodeName, UID: cfg.NodeName},
			Type:   kubeapi.EventWarning, Reason: eventUnenforced, Message: text,
		})
	}
	return out
}

// removeManagerState removes the state files of the kubelet's CPU and memory managers from the last run, whose
// containers are gone. The kubelet does not start if its policy or the set of CPUs has changed since (kubelet 1.37,
// state_checkpoint.go). Restarts of the kubelet within a run need the files.
func removeManagerState(kubeletDir string) error {
	var errs []error
	for _, name := range []string{"cpu_manager_state", "memory_manager_state"} {
		if err := os.Remove(filepath.Join(kubeletDir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove the last run's %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// driverWarnings returns the limits of the chosen drivers and of missing programs.
func driverWarnings(cfg *config.NodeConfig, network layout.NetworkInfo) []string {
	out := slices.Clone(network.Warnings)
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if _, err := exec.LookPath(filepath.Join(cfg.ComponentsDir, criclient.Program)); err != nil {
		add("%s is not installed with the components (%v): when the node stops, pods get TERM without their preStop hooks", criclient.Program, err)
	}
	if cfg.Network.Driver == config.DriverNone {
		add("network.driver none: the node has no connection to other networks, and images must be imported")
	}
	if cfg.Ports.Driver == config.DriverSlirp && !cfg.Network.AllowHostLoopback {
		add("ports.driver slirp4netns: UDP clients on the host's loopback get no reply; use ports.driver builtin if you need UDP there")
	}
	if d := cfg.Network.Driver; cfg.Network.IPv6 && !hasIPv6Uplink(d) && d != config.DriverNone {
		add("network.driver %s connects to other networks with IPv4 only: network.ipv6 applies to pods, Services and host ports", d)
	}
	if d := cfg.Ports.Driver; cfg.Network.IPv6 && (d == config.DriverSlirp || d == config.DriverGvisor) {
		add("ports.driver %s forwards IPv4 only; use ports.driver builtin to forward IPv6 too", d)
	}
	return out
}
