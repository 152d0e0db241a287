package child

import "golang.org/x/sys/unix"

// opaqueFileSystems are those whose usage the kubelet's cAdvisor cannot attribute from inside a user namespace.
func opaqueFileSystems() []int64 { return []int64{unix.BTRFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC} }

// fileSystemType is statfs(2)'s f_type; 0 when it cannot be read.
func fileSystemType(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0
	}
	return int64(st.Type) //nolint:unconvert // its type is another one on other architectures
}
