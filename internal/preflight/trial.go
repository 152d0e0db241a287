package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/trial"
)

// tried is the outcome of the trial: its result, or why it could not be done.
type tried struct {
	trial.Result
	err error
}

// fault returns the failure of a step. ok is false if the step succeeded or was not tried.
func (t tried) fault(step trial.Step) (f trial.Fault, ok bool) {
	f, ok = t.Result[step]
	return f, ok
}

// try does the trial with everything that this configuration needs. Several checks use its result.
func (h *host) try(ctx context.Context) tried {
	request := trial.Request{Work: trial.Work{IP: h.lookPath("ip"), Mount: h.lookPath("mount"), Umount: h.lookPath("umount")}}
	if needsTun(h.cfg) {
		request.Work.Tun = h.path(hostinfo.TunDevice)
	}
	if createsTap(h.cfg) {
		request.NSEnter = h.lookPath(hostinfo.TapProgram)
		if h.cfg.Network.Driver != config.DriverGvisor && h.cfg.Ports.Driver != config.DriverGvisor {
			request.Slirp = h.lookPath(config.DriverSlirp)
		}
	}
	if mode := h.cfg.KubeProxy.Mode; mode != "iptables" {
		request.Work.NFT = h.lookPath("nft")
	}
	if mode := h.cfg.KubeProxy.Mode; mode != "nftables" {
		request.Work.IPTables = h.lookPath("iptables")
	}
	request.UIDs, request.GIDs, request.Work.LastID = h.idMaps(ctx)
	dir, err := os.MkdirTemp(existing(h.in.Data.Dir), trialDir)
	if err == nil { // otherwise reported by check data-dir
		defer func() { _ = os.RemoveAll(dir) }()
		request.Work.Dir = dir
	}
	result, err := h.probes.Trial(ctx, request)
	return tried{result, err}
}

// trialDir is the pattern of the directory for the trial in the data dir or above. `down --delete-data` recognizes it as a temporary
// file of the record, in case that this process is killed.
const trialDir = ".rootlessnode-*"

// idMaps returns the id maps that RootlessKit would create, and the highest id in both. They are empty if a check reports why they cannot
// be created.
func (h *host) idMaps(ctx context.Context) (uids, gids trial.Map, last int) {
	programs := []string{h.lookPath("newuidmap"), h.lookPath("newgidmap")}
	if !h.subidsUsable(ctx) || slices.Contains(programs, "") {
		return trial.Map{}, trial.Map{}, 0
	}
	ids, _, err := h.probes.IDs(h.cfg.Subids.Source)
	if err != nil {
		return trial.Map{}, trial.Map{}, 0
	}
	uids = trial.Map{Program: programs[0], Args: idMap(ids.UID, ids.Subuids)}
	gids = trial.Map{Program: programs[1], Args: idMap(ids.GID, ids.Subgids)}
	return uids, gids, int(min(count(ids.Subuids), count(ids.Subgids)))
}

// subidsUsable reports whether check subids has no failure that prevents an id map.
func (h *host) subidsUsable(ctx context.Context) bool {
	a, ok, err := h.account()
	if err != nil || !ok {
		return false
	}
	for _, kind := range subidKinds() {
		rows, wrong, err := subidsOf(ctx, h, a, kind)
		unusable := err != nil || slices.ContainsFunc(wrong, func(f Finding) bool { return f.Level == LevelFail })
		if len(rows) == 0 || unusable || outsideNamespace(h, kind, rows) != nil {
			return false
		}
	}
	return true
}

func count(ranges []datadir.IDRange) (n int64) {
	for _, r := range ranges {
		n += r.Count
	}
	return n
}

// idMap returns the arguments of newuidmap or newgidmap after the pid: the account's own id is mapped to 0, the others to 1 and up.
func idMap(own int, ranges []datadir.IDRange) []string {
	args := []string{"0", strconv.Itoa(own), "1"}
	next := int64(1)
	for _, r := range ranges {
		args = append(args, strconv.FormatInt(next, 10), strconv.FormatInt(r.Start, 10), strconv.FormatInt(r.Count, 10))
		next += r.Count
	}
	return args
}

// checkNetworkDevices reports the devices and rules that the pod network needs and the kernel refused.
func checkNetworkDevices(ctx context.Context, h *host) []Finding {
	t := h.tried(ctx)
	var found []Finding
	add := func(step trial.Step, what string, modules ...string) {
		fault, ok := t.fault(step)
		if !ok {
			return
		}
		f := fail("the node cannot create %s: %v", what, fault)
		f.fix.add(loadModules(modules...)...)
		f.fix.setup = true
		found = append(found, f)
	}
	add(trial.StepVeth, "a veth device", "veth")
	if catalogue.BuildsPodNetwork(h.cfg) {
		add(trial.StepBridge, "a bridge", "bridge", "br_netfilter")
		if h.cfg.Flannel.Backend == "vxlan" {
			add(trial.StepVXLAN, "a vxlan device", "vxlan")
		}
	}
	if h.cfg.KubeProxy.Mode == "iptables" {
		add(trial.StepNAT, "rules with iptables", "ip_tables", "iptable_nat", "iptable_filter")
	} else {
		add(trial.StepNAT, "rules with nftables", "nf_tables", "nft_chain_nat", "nft_ct", "nft_masq")
	}
	return orPass(found, "devices and packet filter rules of the pod network can be created")
}

// checkOverlay reports whether images can share their layers.
func checkOverlay(ctx context.Context, h *host) []Finding {
	fault, ok := h.tried(ctx).fault(trial.StepOverlay)
	snapshotter := h.cfg.Containerd.Snapshotter
	switch {
	case !ok:
		return []Finding{pass("overlayfs works in the data dir")}
	case h.cfg.CRI.Runtime != config.RuntimeContainerd || snapshotter == "native" || snapshotter == "fuse-overlayfs":
		return []Finding{pass("overlayfs is not needed")}
	case snapshotter == "overlayfs":
		return []Finding{fail("overlayfs does not work in data dir %s: %v", h.in.Data.Dir, fault).hint(
			"# let the node choose: containerd.snapshotter: auto", localDiskHint)}
	}
	f := warn("overlayfs does not work in data dir %s, so images need more time and space: %v", h.in.Data.Dir, fault)
	if h.lookPath("fuse-overlayfs") == "" {
		f.fix.programs = []string{"fuse-overlayfs"}
	}
	return []Finding{f.hint(localDiskHint)}
}

// dataStep is an operation on files that a node needs, with its purpose.
type dataStep struct {
	step trial.Step
	what string
}

func dataSteps() []dataStep {
	return []dataStep{
		{trial.StepOwner, "give files to subordinate ids, as images need"},
		{trial.StepExec, "execute programs, such as those of images"},
		{trial.StepSymlink, "follow symbolic links, as volumes need"},
		{trial.StepLink, "create hard links, as images need"},
		{trial.StepRename, "rename files"},
		{trial.StepLock, "lock files, as databases need"},
		{trial.StepMap, "map files into memory, as databases need"},
		{trial.StepSocket, "create sockets, as the kubelet needs"},
		{trial.StepNames, "have names of 255 bytes, as in images"},
	}
}

// checkDataFiles reports the operations on files in the data dir that failed. Check data-dir reports those that need no trial.
func checkDataFiles(ctx context.Context, h *host) []Finding {
	t := h.tried(ctx)
	var cannot []string
	for _, s := range dataSteps() {
		if fault, ok := t.fault(s.step); ok {
			cannot = append(cannot, fmt.Sprintf("%s (%v)", s.what, withoutPath(fault)))
		}
	}
	if len(cannot) == 0 {
		return []Finding{pass("files in the data dir have the properties that a node needs")}
	}
	return []Finding{fail("data dir %s is on a file system where files cannot %s", h.in.Data.Dir, strings.Join(cannot, "; nor ")).hint(localDiskHint)}
}

// withoutPath returns the error number of a fault, because the path is that of a temporary file.
func withoutPath(f trial.Fault) error {
	if f.Errno != 0 {
		return f.Errno
	}
	return f
}

// checkTmp checks for a /tmp that programs can use, and over which the start can mount.
func checkTmp(ctx context.Context, h *host) []Finding {
	const dir = "/tmp"
	owner := asRoot("install -d -m 1777 -o root -g root " + dir)
	if fault, ok := h.tried(ctx).fault(trial.StepTmp); ok {
		return []Finding{fail("the start cannot mount a tmpfs over %s: %v", dir, withoutPath(fault)).hint(owner)}
	}
	f, err := os.CreateTemp(h.path(dir), "rootlessnode-check-")
	if err != nil {
		return []Finding{fail("programs cannot create files in %s: %v", dir, errors.Unwrap(err)).hint(owner)}
	}
	_ = f.Close()
	_ = os.Remove(f.Name())
	return []Finding{pass("%s can be used", dir)}
}

// tunFault returns the finding for a device that can be opened, but is not a TUN device.
func (h *host) tunFault(fault trial.Fault) Finding {
	f := fail("%s is not a TUN device: %v", hostinfo.TunDevice, withoutPath(fault))
	if errors.Is(fault, unix.EPERM) || errors.Is(fault, unix.EACCES) {
		f = fail("creating a network device with %s is not permitted", hostinfo.TunDevice)
	}
	f.fix.add(asRoot("rm -f "+hostinfo.TunDevice), asRoot("mknod -m 0666 "+hostinfo.TunDevice+" c 10 200"))
	return f
}
