package hostinfo

import (
	"os"
	"path/filepath"
)

// SbinDirs returns directories with programs that a node needs and that are often not on an account's PATH (Debian).
func SbinDirs() []string { return []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} }

// IDMapPrograms returns the programs that map the ids of every node, for uids and gids.
func IDMapPrograms() []string { return []string{"newuidmap", "newgidmap"} }

// NodePrograms returns the other programs that every node runs from the host: RootlessKit runs ip for the network, and the kubelet mount
// and umount for volumes. Further programs depend on the configuration: that of the network driver, TapProgram, nft and iptables.
func NodePrograms() []string { return []string{"ip", "mount", "umount"} }

// TapProgram is the program with which RootlessKit enters the node's network namespace to create a tap device, and NFTProgram that of
// the preferred packet filter.
const (
	TapProgram = "nsenter"
	NFTProgram = "nft"
)

// rootDirs returns the directories of system programs. The last two are those of NixOS.
func rootDirs() []string {
	return []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/run/wrappers/bin", "/run/current-system/sw/bin"}
}

// RootProgram returns the path of a program that root can execute safely, or "". It searches the system directories, and then PATH
// for files that no account can replace (RootOnly), because PATH may be that of an account, as with su(1).
func RootProgram(program string) string {
	if p := FindProgram(program, rootDirs()...); p != "" {
		return p
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if p := FindProgram(program, dir); p != "" && RootOnly(p) == nil {
			return p
		}
	}
	return ""
}

// FindProgram returns the path of the first executable file with that name in dirs, or "". It skips directories that are not
// absolute.
func FindProgram(program string, dirs ...string) string {
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			continue
		}
		p := filepath.Join(dir, program)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0 {
			return p
		}
	}
	return ""
}
