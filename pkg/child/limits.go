package child

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// unenforcedSettings names the fields of the config that do nothing in this cgroup: those whose controller is missing, and
// caps that the kernel did not take.
func unenforcedSettings(cfg *config.NodeConfig, c layout.CgroupInfo) []string {
	out := cfg.Resources.Unenforced(c.Unenforced)
	for _, name := range slices.Sorted(maps.Keys(c.Refused)) {
		if field := "resources." + name; !slices.Contains(out, field) {
			out = append(out, field)
		}
	}
	return out
}

// unenforcedTexts says which limits do nothing here; empty where all are enforced.
func unenforcedTexts(cfg *config.NodeConfig, c layout.CgroupInfo) []string {
	var out []string
	if len(c.Unenforced) > 0 {
		out = append(out, fmt.Sprintf("cgroup controllers %v are not delegated: pods' limits that need them are accepted and not enforced", c.Unenforced))
	}
	if fields := unenforcedSettings(cfg, c); len(fields) > 0 {
		text := fmt.Sprintf("not enforced on this node: %s", strings.Join(fields, ", "))
		for _, name := range slices.Sorted(maps.Keys(c.Refused)) {
			if !slices.Contains(c.Unenforced, name) { // else the missing controller is the reason
				text += fmt.Sprintf("; the kernel refuses resources.%s: %s", name, c.Refused[name])
			}
		}
		out = append(out, text)
	}
	return out
}

// unenforced says it once in the log and in the status.
func (n *nodeRole) unenforced() {
	for _, text := range unenforcedTexts(n.cfg, n.handover.Cgroup) {
		n.warn("%s", text)
	}
}

// eventUnenforced is the reason of the Events that say so on the Node.
const eventUnenforced = "LimitsNotEnforced"

// unenforcedEvents are those Events. By convention a Node's UID in an Event is its name.
func unenforcedEvents(cfg *config.NodeConfig, c layout.CgroupInfo) []kubeapi.Event {
	var out []kubeapi.Event
	for _, text := range unenforcedTexts(cfg, c) {
		out = append(out, kubeapi.Event{
			Object: kubeapi.ObjectRef{Kind: "Node", Name: cfg.NodeName, UID: cfg.NodeName},
			Type:   kubeapi.EventWarning, Reason: eventUnenforced, Message: text, Host: cfg.NodeName,
		})
	}
	return out
}

// tellUnenforced says it as Events on the Node, for those who see nothing but the cluster.
func (n *nodeRole) tellUnenforced() {
	for _, ev := range unenforcedEvents(n.cfg, n.handover.Cgroup) {
		n.tell(ev)
	}
}

// forgetManagers removes what the kubelet's CPU and memory managers remember of the last run, whose containers are gone.
// A kubelet that finds the memory of another policy, or of another set of CPUs, does not start (kubelet 1.37,
// state_checkpoint.go); its own restarts in one run need the files.
func forgetManagers(kubeletDir string) error {
	var errs []error
	for _, name := range []string{"cpu_manager_state", "memory_manager_state"} {
		if err := os.Remove(filepath.Join(kubeletDir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("forget the last run's %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
