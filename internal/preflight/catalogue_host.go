package preflight

import "context"

// accountChecks are the checks of the account that runs the node, and of its login.
func accountChecks() []Check {
	return []Check{
		{
			Code: "RN-ROOT", Name: rootCheck, Title: "the node is run by an ordinary user",
			Why:   "a rootless node gives its processes no privileges on the host, which root cannot guarantee",
			Fails: "the uid is 0, on the host or in another user namespace; no other check is run then",
			Fix:   "Create an account and start the node as that account.",
			run:   func(_ context.Context, h *host) []Finding { return []Finding{checkRoot(h)} },
		},
		{
			Code: "RN-ACCOUNT", Name: "account", Title: "the account is in passwd",
			Why:   "newuidmap looks up the account by its uid and refuses unknown ones",
			Fails: "the uid is unknown to /etc/passwd and to `getent`",
			Fix:   "Run the node as an account that `getent passwd` lists, or create one.",
			run:   checkAccount,
		},
		{
			Code: "RN-SUBIDS", Name: "subids", Title: "subordinate uids and gids",
			Why: "the files of images belong to up to 65536 users, which are mapped to subordinate ids of the account",
			Fails: "a file cannot be read; there is no row; there are fewer than 65536 ids; rows of the account overlap; a row cannot be parsed by RootlessKit or by " +
				"`newuidmap`, for example because of CRLF line ends, blanks after the number, a count of 0, or ids above 4294967294; the home is " +
				"id-mapped (systemd-homed) and the ids are below 524288; the user namespace of the container does not have the ids",
			Warns: "another account has the same ids; a row contains the account's own id, which RootlessKit then leaves out",
			Fix:   "Add a row for the account to /etc/subuid and /etc/subgid with `usermod`, or fix the named row.",
			run:   checkSubids,
		},
		{
			Code: "RN-IDMAP", Name: "idmap-programs", Title: "newuidmap and newgidmap map the account's ids",
			Why: "only these programs may map more than one id into the node's user namespace",
			Fails: "one of the programs is missing, has no privilege, or is on a nosuid mount; no_new_privs is set; they cannot map the ids " +
				"that RootlessKit would request (the check tries it)",
			Fix: "Install the package of the programs, restore their set-uid bit or file capability, or start the node without no_new_privs.",
			run: checkIDMapPrograms,
		},
		{
			Code: "RN-RUNTIME-DIR", Name: "runtime-dir", Title: "a runtime directory of the account",
			Why:   "the node's sockets and its lock must be in a directory that only the account can access",
			Fails: "neither XDG_RUNTIME_DIR nor /run/user/UID is a directory of the account with mode 0700; it is read-only or full",
			Warns: "/run/user/UID is used instead of XDG_RUNTIME_DIR",
			Fix:   "Log in with ssh or `machinectl shell`, enable lingering, or have root create the directory.",
			run:   checkRuntimeDir,
		},
		{
			Code: "RN-HOME", Name: "home", Title: "the account can write to its data home",
			Why:   "a file in `~/.local/share/rootlessnode` records where the data of each node is",
			Fails: "the directory cannot be created, for example because `~/.local/share` belongs to root",
			Fix:   "Make the account the owner of the directory.",
			run:   checkHome,
		},
		{
			Code: "RN-LIMITS", Name: "limits", Title: "limits of the login",
			Why:   "an account can lower its limits and not raise them, and all processes of the node inherit them",
			Fails: "the hard limit of CPU time, file size, data size or address space is below that of a start",
			Fix:   "Remove the limits for the account in /etc/security/limits.conf or in the unit, and log in again.",
			run:   checkLoginLimits,
		},
		{
			Code: "RN-OPEN-FILES", Name: "open-files", Title: "the limit of open files",
			Why:   "the node needs one descriptor for each forwarded port, and its components thousands",
			Fails: "the hard limit is below 1024",
			Warns: "the hard limit is below 65536",
			Fix:   "Raise the limit of the login, and log in again.",
			run:   checkOpenFiles,
		},
		{
			Code: "RN-LINGER", Name: "linger", Title: "the account keeps running after logout",
			Why:   "logind and elogind remove the runtime directory, and logind stops all processes, after the last logout of an account",
			Warns: "systemd or elogind runs without lingering for the account",
			Fix:   "Enable lingering.",
			run:   checkLinger,
		},
	}
}

// kernelChecks are the checks of the kernel and of the limits that it enforces for the account.
func kernelChecks() []Check {
	return []Check{
		{
			Code: "RN-USERNS", Name: "user-namespaces", Title: "user namespaces can be created",
			Why:   "a node is a user namespace with further namespaces in it",
			Fails: "`user.max_user_namespaces` or `kernel.unprivileged_userns_clone` is 0; AppArmor, seccomp or a chroot forbids it (the check tries it)",
			Warns: "`user.max_user_namespaces` is below 1024",
			Fix:   "Set the sysctl, install an AppArmor profile for the executable, or start outside of the sandbox.",
			run:   checkUserNamespaces,
		},
		{
			Code: "RN-NAMESPACES", Name: "namespaces", Title: "namespaces of every kind, enough for the pods",
			Why:   "the node, each pod and each container have their own namespaces, and the kernel limits them for each account",
			Fails: "a namespace of some kind cannot be created, or a container engine's seccomp filter forbids setting the host name in it (the check tries both)",
			Warns: "a quota `user.max_*_namespaces` is too low for `kubelet.maxPods`; it could not be tried",
			Fix:   "Raise the sysctls now and at each boot. Start the container without the filter.",
			run:   checkNamespaces,
		},
		{
			Code: "RN-PROC", Name: "proc", Title: "the node can mount its own /proc",
			Why:   "the node has its own process ids, and the kernel lets it mount /proc only if the host's is fully visible",
			Fails: "parts of /proc are covered or read-only, as in containers, or the AppArmor profile of a container engine is active (the check tries it)",
			Fix:   "Start the container with the options that the finding lists.",
			run:   checkProc,
		},
		{
			Code: "RN-KERNEL", Name: "kernel", Title: "the kernel's version and features",
			Why:   "Kubernetes supports user namespaces from Linux 4.15 on, and overlayfs works in them from 5.11 on",
			Fails: "it is older than 4.15; it is older than 5.11 and `containerd.snapshotter` is overlayfs; `network.ipv6` is on and the kernel has no IPv6",
			Warns: "it is older than 5.11",
			Fix:   "Use a newer kernel, or let the node choose the snapshotter.",
			run:   checkKernel,
		},
		{
			Code: "RN-MODULES", Name: "modules", Title: "kernel modules are loaded",
			Why:   "a user namespace cannot load kernel modules",
			Fails: "the kernel has its packet filters as modules, and neither those of nftables nor all of iptables are loaded",
			Warns: "other modules that `host setup` loads are not loaded",
			Fix:   "Load the modules now and at each boot.",
			run:   checkModules,
		},
		{
			Code: "RN-INOTIFY", Name: "inotify", Title: "inotify instances and watches",
			Why:   "all processes of an account share them; without one, programs stop with \"too many open files\"",
			Fails: "16 instances cannot be created, because there are too few or other programs use them (the check tries it)",
			Warns: "there are fewer than 512 instances or 524288 watches",
			Fix:   "Raise the sysctls now and at each boot.",
			run:   checkInotify,
		},
		{
			Code: "RN-PROCESSES", Name: "processes", Title: "the number of processes and threads",
			Why:   "the components need more than 100 threads when the node is Ready, and each pod about 15",
			Fails: "the login or a cgroup above the node's allows fewer than 512 more",
			Warns: "they allow fewer than 4096 more",
			Fix:   "Raise the limit of the login (nproc) or `pids.max` of the cgroup (TasksMax= of systemd).",
			run:   checkProcesses,
		},
		{
			Code: "RN-MEMORY", Name: "memory", Title: "available memory",
			Why:   "the components of a control plane need about 700 MB, and the kernel ends one of them if there is not enough",
			Fails: "less than 300 MiB are available, with swap, on the machine or in a cgroup above the node's",
			Warns: "less than 1 GiB is available",
			Fix:   "End other programs, add memory, or raise `memory.max` of the cgroup.",
			run:   checkMemory,
		},
		{
			Code: "RN-KEYS", Name: "kernel-keys", Title: "the quota of kernel keys",
			Why:   "CRI-O and external runtimes create a keyring for each container, and all containers share the account's quota",
			Warns: "with a runtime other than the bundled containerd: `kernel.keys.maxkeys` or `maxbytes` is too low for `kubelet.maxPods`",
			Fix:   "Raise the sysctls, or use containerd, which creates no keyrings.",
			run:   checkKeys,
		},
		{
			Code: "RN-CLOCK", Name: "clock", Title: "the clock",
			Why:   "certificates are valid only for a period of time",
			Fails: "the time is outside the period for which the certificate authority of the node's cluster is valid",
			Warns: "the time is before that of the commit from which the program was built",
			Fix:   "Set the clock.",
			run:   checkClock,
		},
		{
			Code: "RN-CGROUP", Name: "cgroup", Title: "a delegated cgroup v2 subtree",
			Why:   "the kubelet limits and measures pods with cgroups, and stops everything that belongs to the node",
			Fails: "there is no cgroup v2 tree, none is delegated to the account, or the node cannot mount it (the check tries it)",
			Warns: "controllers are missing: the node starts, but does not enforce limits that need them",
			Fix:   "Have systemd delegate the controllers, or have root prepare a cgroup with `host setup` and start the node with `host enter`.",
			run:   checkCgroup,
		},
		{
			Code: "RN-RESOURCES", Name: "resources", Title: "the configured limits fit the machine",
			Why:   "a limit that exceeds the machine or cannot be enforced has no effect",
			Warns: "limits and settings need missing controllers; limits exceed the machine; nothing is left for pods",
			Fix:   "Change `resources` in the configuration, or have the controllers delegated.",
			run:   checkResources,
		},
	}
}
