package preflight

// programChecks are the checks of programs that the node runs from the host.
func programChecks() []Check {
	return []Check{
		{
			Code: "RN-PROGRAMS", Name: "programs", Title: "programs that the node runs",
			Why: "the node's network and the mounts of volumes are set up with programs of the host",
			Fails: "`ip`, `mount` or `umount` is missing or does not work (the check tries it); `nsenter` the network drivers slirp4netns and gvisor-tap-vsock " +
				"too; or `nft` and `iptables`, depending on `kubeProxy.mode`",
			Fix: "Install the packages of the programs.",
			run: checkPrograms,
		},
		{
			Code: "RN-NETWORK-PROGRAM", Name: "network-program", Title: "the program of the network driver",
			Why: "the network driver connects the node with the host's network",
			Fails: "the driver's program is missing or does not run (the check starts slirp4netns); lxc-user-nic has no permission, no bridge, or a bridge whose DHCP server " +
				"has ended; passt is too old for `ports.driver: pesto`",
			Fix: "Install the program, or use the built-in driver: `network.driver: gvisor-tap-vsock`.",
			run: checkNetworkProgram,
		},
	}
}

// networkChecks are the checks of the host's network.
func networkChecks() []Check {
	return []Check{
		{
			Code: "RN-NETWORK-POLICY", Name: "network-policy", Title: "the kernel can enforce NetworkPolicies",
			Why:   "with `networkPolicy` on, the kernel passes the first packet of each connection to a program",
			Fails: "the kernel has no nft queue expression (the check tries it), `br_netfilter` is not loaded, or `nft` is missing",
			Warns: "it could not be tried",
			Fix:   "Load the modules, install nftables, or set `networkPolicy: none`.",
			run:   checkNetworkPolicy,
		},
		{
			Code: "RN-NETWORK-DEVICES", Name: "network-devices", Title: "devices and packet filter rules of the pod network",
			Why:   "pods are connected by veth devices, a bridge and VXLAN, and Services are rules of the packet filter",
			Fails: "the kernel refuses one of them in a user namespace (the check tries it)",
			Fix:   "Load the named kernel modules, or use a kernel that has them.",
			run:   checkNetworkDevices,
		},
		{
			Code: "RN-TUN", Name: "tun", Title: "/dev/net/tun",
			Why:   "the node's network interface is a tap device",
			Fails: "the device is missing, cannot be opened, or is not a TUN device (the check creates a network interface)",
			Fix:   "Load the module tun, and have root create the device with mode 0666.",
			run:   checkTun,
		},
		{
			Code: "RN-PORTS", Name: "ports", Title: "the node's ports on the host",
			Why:   "clients reach the API server and forwarded ports at the host's addresses",
			Fails: "`api.port` or a static forward cannot be bound: in use (and by which process), below the first unprivileged port, or no such address",
			Fix:   "Use another port, or stop the program that uses it.",
			run:   checkPorts,
		},
		{
			Code: "RN-ROUTES", Name: "routes", Title: "the node's networks do not overlap those of the host",
			Why: "the node cannot reach addresses of the host's networks that are also in its own networks",
			Fails: "a network or name server of the host is within the network of the pods, of Services or of `network.cidr`, unless that has its " +
				"default value: then the node uses another range. Routes of all routing tables count",
			Warns: "a wider network overlaps them",
			Fix:   "Set the range that the finding proposes.",
			run:   checkRoutes,
		},
		{
			Code: "RN-RESOLV-CONF", Name: "resolv-conf", Title: "name servers in /etc/resolv.conf",
			Why:   "the network driver passes the node's queries to the name servers of the host",
			Warns: "the file cannot be read or has no name server; it has only servers with IPv6 addresses, and the network driver cannot query these",
			Fix:   "Configure a name server on the host. For IPv6 only: set `network.ipv6` or `network.driver: gvisor-tap-vsock`.",
			run:   checkResolvConf,
		},
		{
			Code: "RN-HOSTS", Name: "hosts", Title: "localhost in /etc/hosts",
			Why:   "programs connect to services of the same host by that name",
			Warns: "the file is missing, a dangling link, unreadable, or has no localhost",
			Fix:   "Add the line `127.0.0.1 localhost`.",
			run:   checkHosts,
		},
		{
			Code: "RN-PROXY", Name: "proxy", Title: "proxies in the environment",
			Why:   "components refuse all connections if the URL of a proxy is malformed",
			Fails: "HTTP_PROXY or HTTPS_PROXY, in upper or lower case, is not a URL of the scheme http, https or socks5",
			Warns: "a proxy is at the host's loopback, and its port is not in network.hostPorts",
			Fix:   "Correct the variable, or remove it. Add the port of a proxy at the host's loopback to network.hostPorts.",
			run:   checkProxy,
		},
		{
			Code: "RN-CA-FILES", Name: "ca-files", Title: "certificate authorities",
			Why:   "images are pulled from registries whose certificates are verified",
			Warns: "none of the files and directories with certificate authorities is readable",
			Fix:   "Install the package ca-certificates.",
			run:   checkCAFiles,
		},
	}
}

// fileChecks are the checks of the host's file systems and of the directories that the node uses.
func fileChecks() []Check {
	return []Check{
		{
			Code: "RN-TMP", Name: "tmp", Title: "/tmp",
			Why:   "components create temporary files there, and the start mounts a private file system over it",
			Fails: "it does not exist, nothing can be mounted over it, or files cannot be created there (the check tries it)",
			Fix:   "Create the directory with mode 1777.",
			run:   checkTmp,
		},
		{
			Code: "RN-MOUNTS", Name: "mounts", Title: "mounts of the host reach the node",
			Why:   "mounts that the host makes after the start reach volumes only if the mount above them is shared",
			Fails: "an element of `mounts.copyUp` is not a directory that the account can list; the propagation of mounts cannot be changed, as in a chroot (the check tries it)",
			Warns: "the root mount of the host or of another disk is private",
			Fix:   "Make the mounts shared before the node starts.",
			run:   checkMounts,
		},
		{
			Code: "RN-SOCKET-PATHS", Name: "socket-paths", Title: "the length of socket paths",
			Why:   "the kernel limits the path of a socket to 107 characters",
			Fails: "the longest socket path has more than 107 characters",
			Fix:   "Use a shorter `--name` or XDG_RUNTIME_DIR.",
			run:   checkSocketPaths,
		},
		{
			Code: "RN-DATA-PATH", Name: "data-path", Title: "the path of the data dir",
			Why:   "the kubeconfig is there, and KUBECONFIG is a list of paths that are separated by colons",
			Fails: "the path has a colon or a control character",
			Fix:   "Choose another path with `dataDir`.",
			run:   checkDataPath,
		},
		{
			Code: "RN-DATA-DIR", Name: "data-dir", Title: "the data dir",
			Why:   "images, containers and the cluster's state are stored there, with files that belong to subordinate ids",
			Fails: "it is not writable, read-only, noexec, or on NFS, CIFS, AFS, Ceph or Lustre",
			Warns: "it is nosuid, or on FUSE or 9p; other accounts have access, and the start cannot remove it",
			Fix:   "Choose a data dir on a local disk with `dataDir`, or make the account its owner.",
			run:   checkDataDir,
		},
		{
			Code: "RN-DATA-FILES", Name: "data-files", Title: "what files in the data dir can do",
			Why: "images, volumes and databases need more than reading and writing",
			Fails: "files cannot be given to subordinate ids, executed, renamed, locked or mapped, or cannot be links, sockets, or have names of " +
				"255 bytes (the check tries it on that file system)",
			Fix: "Choose a data dir on a local disk with `dataDir`.",
			run: checkDataFiles,
		},
		{
			Code: "RN-OVERLAY", Name: "overlay", Title: "overlayfs in the data dir",
			Why:   "with overlayfs, containers share the files of their images",
			Fails: "it does not work there, and `containerd.snapshotter` is overlayfs (the check tries it)",
			Warns: "it does not work there, so that fuse-overlayfs or plain copies are used",
			Fix:   "Choose a data dir on ext4, xfs or btrfs, or install fuse-overlayfs.",
			run:   checkOverlay,
		},
		{
			Code: "RN-DATA-IDS", Name: "data-ids", Title: "the ids of the data",
			Why:   "the data's files belong to the subordinate ids with which it was created",
			Fails: "the data was created with other subordinate ids, or with the same ids in another order; its record cannot be read",
			Fix:   "Restore the former ids, or delete the data.",
			run:   checkDataIDs,
		},
		{
			Code: "RN-DISK-SPACE", Name: "disk-space", Title: "free space and inodes for the data",
			Why:   "the node's own images and the cluster's state need space, and images of pods more",
			Fails: "less than 400 MiB are free for the first start, 100 MiB for later ones, or 5000 inodes",
			Warns: "less than 1 GiB or 50000 inodes are free, or less than the kubelet's eviction threshold",
			Fix:   "Free space, or move `dataDir` to another file system.",
			run:   checkDiskSpace,
		},
	}
}

// componentChecks are the checks of the node's own programs.
func componentChecks() []Check {
	return []Check{
		{
			Code: "RN-COMPONENTS", Name: "components", Title: "the components match their manifest",
			Why:   "components that are incomplete, damaged or of incompatible versions do not form a cluster",
			Fails: "the manifest is missing; a file is missing, changed or not executable; a version is outside the skew policy",
			Fix:   "Build the components again with `make components`, or set `componentsDir`.",
			run:   checkComponents,
		},
		{
			Code: "RN-RUNTIME", Name: "runtime", Title: "the container runtime",
			Why:   "a runtime other than the bundled containerd comes from the host",
			Fails: "a configured file or directory does not exist; with CRI-O: a program is missing, too old or does not run",
			Warns: "images cannot be imported, because skopeo is missing",
			Fix:   "Install the programs, or set `cri.runtime: containerd`.",
			run:   checkRuntime,
		},
	}
}
