package layout

// Handover describes a file or an environment key that passes state between processes. docs/layout.md has the tables.
type Handover struct {
	// Name is the name in this package, and Value the path or the key.
	Name, Value string
	Content     string
	// Writer and Readers are roles of processes. A reader that waits for changes watches the file.
	Writer, Readers string
	// Lifetime is the time from the first write until the removal.
	Lifetime string
}

// Files returns the files of a node that pass state between its processes. All are JSON except Runtime.CgroupFile and
// Data.BootstrapKubeconfig, and all are replaced atomically.
func Files(r Runtime, d Data) []Handover {
	const run = "the run"
	return []Handover{
		{"Runtime.Config", r.Config(), "The effective config", "parent; `rootlessnode reload`", "child, node, guard, commands", run},
		{"Runtime.CgroupFile", r.CgroupFile(), "The path of the node's cgroup subtree", "parent", "guard; the next parent after a crash", run},
		{"Runtime.Handover", r.Handover(), "Pids, network and cgroup (`HandoverInfo`)", "parent, before the child continues", "node", run},
		{"Runtime.Uplink", r.Uplink(), "The address and name servers from DHCP (`NetworkInfo`), with lxc-user-nic", "child", "node, parent", run},
		{"Runtime.HostAddresses", r.HostAddresses(), "The host's addresses by interface (`HostAddress`)",
			"parent, at each change", "node, waits", run},
		{"Runtime.NodeAddress", r.NodeAddress(), "The address by which other nodes reach this one, in a cluster with several nodes",
			"parent, at each change", "node, waits", run},
		{"Runtime.HostRoutes", r.HostRoutes(), "Routes of the host that overlap the node's networks (`RouteOverlap`)",
			"parent, at each change", "node, waits", run},
		{"Runtime.HostResolver", r.HostResolver(), "The host's search domains, resolver options and name servers (`hostinfo.Resolver`)",
			"parent, at each change", "node, waits", run},
		{"Runtime.PortFaults", r.PortFaults(), "Forwarded ports that currently accept no connections, and scarce descriptors (`Forwarding`)",
			"parent, at each change", "node, waits", "from the first fault to the end of the run"},
		{"Runtime.Failure", r.Failure(), "The error that ended the roles inside (`errdefs.Report`)", "child, node", "parent", run},
		{"Runtime.NetworkFault", r.NetworkFault(), "Whether the network driver's process runs (`NetworkFault`)",
			"parent, at each change", "node, waits", "from the first fault to the end of the run"},
		{"Runtime.Removal", r.Removal(), "The data dir to remove (`datadir.Request`)", "remove", "remove-inside", "the removal"},
		{"Runtime.Removed", r.Removed(), "The result of the removal (`datadir.Result`)", "remove-inside, remove-child", "remove", "the removal"},
		{"Data.LastExit", d.LastExit(), "The error that ended the last run (`errdefs.Report`)",
			"parent, guard", "commands", "until the next start"},
		{"Data.BootstrapKubeconfig", d.BootstrapKubeconfig(), "The kubeconfig with the bootstrap token, on a worker",
			"host program", "node", "until the node has its certificate"},
	}
}

// PrivateKeys returns the environment keys that pass state between processes.
func PrivateKeys() []Handover {
	const start, kit = "until the process has started", "RootlessKit's parent"
	return []Handover{
		{"EnvRole", EnvRole, "The role of the process; not set in the host program", "the process that starts it", "`node.Dispatch`", start},
		{"EnvRuntimeDir", EnvRuntimeDir, "The runtime dir", "the process that starts it", "`node.Dispatch`", start},
		{"EnvPipeFD", EnvPipeFD, "The descriptors of RootlessKit's pipes", kit, "child", start},
		{"EnvStateDir", EnvStateDir, "RootlessKit's state dir", kit, "child", start},
		{"EnvChildActivation", EnvChildActivation, "Whether RootlessKit passes sockets of systemd: always `false`", kit, "child", start},
		{"EnvTakenToken", EnvTakenToken, "The bootstrap token", "`up --foreground`",
			"the executable with another network driver that replaces it", "until the node has joined"},
		{"EnvRelay", EnvRelay, "The pid of the process that relays root's terminal",
			"`host enter`", "the `host enter` that enters the account", start},
	}
}
