package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/trial"
)

// containersPerPod is the number of containers of a pod for which quotas are checked: the sandbox and two more.
const containersPerPod = 3

// namespaceNeeds returns how many namespaces of each kind the node and its pods need, by the kind's name in the sysctl. A container has
// its own pid, mount and cgroup namespace, a pod the others.
func namespaceNeeds(c *config.NodeConfig) map[string]int {
	pods, containers := c.Kubelet.MaxPods+1, c.Kubelet.MaxPods*containersPerPod+1
	return map[string]int{
		"user": pods, "net": pods, "ipc": pods, "uts": pods, "pid": containers, "mnt": containers, "cgroup": containers,
	}
}

// checkNamespaces compares the account's quotas of namespaces with kubelet.maxPods, and tries a namespace of each kind.
func checkNamespaces(ctx context.Context, h *host) []Finding {
	t := h.tried(ctx)
	var found []Finding
	needs := namespaceNeeds(h.cfg)
	for _, kind := range hostinfo.NamespaceKinds() {
		key := "user.max_" + kind + "_namespaces"
		n, err := h.readInt("/proc/sys/" + strings.ReplaceAll(key, ".", "/"))
		if err != nil || n >= int64(needs[kind]) || kind == "user" && n < minUserNamespaces { // check user-namespaces reports the last
			continue
		}
		f := warn("%s is %d: %d pods (kubelet.maxPods) need up to %d", key, n, h.cfg.Kubelet.MaxPods, needs[kind])
		if n == 0 {
			f = fail("%s is 0: no such namespace can be created", key)
		}
		f = f.hint(setSysctl(key, max(hostinfo.Namespaces, needs[kind]))...).with(map[string]string{key: strconv.FormatInt(n, 10)})
		f.fix.setup = true
		found = append(found, f)
	}
	fault, failed := t.fault(trial.StepStart)
	switch {
	case len(found) > 0:
	case failed && errors.Is(fault, unix.ENOSPC):
		found = append(found, fail("the account has used up its namespaces of one kind (user.max_*_namespaces): %v", withoutPath(fault)).hint(
			"# end other programs of the account that create namespaces, or raise the quotas:", asRoot("sysctl user")))
	case failed:
		found = append(found, fail("namespaces cannot be created: %v", withoutPath(fault)))
	case t.err != nil:
		found = append(found, warn("not tried: %v", t.err))
	}
	if fault, failed := t.fault(trial.StepHostName); failed {
		found = append(found, fail("the host name of a new namespace cannot be set, but every pod has its own, because of a seccomp filter: %v", fault).
			hint(noSeccomp(h)...))
	}
	return orPass(found, "namespaces of every kind can be created, enough for %d pods", h.cfg.Kubelet.MaxPods)
}

// checkKeys compares the account's quota of kernel keys with kubelet.maxPods, for runtimes that create a keyring for each container.
func checkKeys(_ context.Context, h *host) []Finding {
	if h.cfg.CRI.Runtime == config.RuntimeContainerd {
		return []Finding{pass("not needed: containers get no keyring")}
	}
	used, bytesUsed := keyUsage(h)
	need := int64(h.cfg.Kubelet.MaxPods * containersPerPod)
	const bytesPerKey = 100 // the name of the keyring, with the 64 digits of the container
	var found []Finding
	for _, q := range []struct {
		key        string
		used, need int64
	}{{"kernel.keys.maxkeys", used, need}, {"kernel.keys.maxbytes", bytesUsed, need * bytesPerKey}} {
		n, err := h.readInt("/proc/sys/" + strings.ReplaceAll(q.key, ".", "/"))
		if err != nil || n-q.used >= q.need {
			continue
		}
		f := warn("%s is %d and %d are in use: %d pods (kubelet.maxPods) need up to %d", q.key, n, q.used, h.cfg.Kubelet.MaxPods, q.need)
		found = append(found, f.hint(setSysctl(q.key, int(q.used+2*q.need))...))
	}
	return orPass(found, "enough kernel keys for %d pods", h.cfg.Kubelet.MaxPods)
}

// keyUsage returns the number of keys of the account and their size, from /proc/key-users (keyrings(7)): "UID: usage nkeys/nikeys
// qnkeys/maxkeys qnbytes/maxbytes".
func keyUsage(h *host) (keys, size int64) {
	b, _ := os.ReadFile(h.path("/proc/key-users")) // masked in some containers
	for line := range strings.Lines(string(b)) {
		var uid int
		var usage, all, instantiated, maxKeys, maxBytes int64
		_, err := fmt.Sscanf(strings.TrimSpace(line), "%d: %d %d/%d %d/%d %d/%d", &uid, &usage, &all, &instantiated, &keys, &maxKeys, &size, &maxBytes)
		if err == nil && uid == h.in.UID {
			return keys, size
		}
	}
	return 0, 0
}
