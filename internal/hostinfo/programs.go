package hostinfo

import (
	"os"
	"path/filepath"
)

// SbinDirs hold programs that a node needs and that an account's PATH often lacks (Debian).
func SbinDirs() []string { return []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} }

// rootDirs hold the programs of a system, on NixOS the last two.
func rootDirs() []string {
	return []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/run/wrappers/bin", "/run/current-system/sw/bin"}
}

// RootProgram finds a program for root to execute, "" for none: in the directories of the system, then in those of PATH, where
// only a file counts that no account can replace (RootOnly). PATH may be that of an account, as with su(1).
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

// FindProgram returns the first file of that name in dirs that can be executed, "" for none. Directories that are not
// absolute are passed over.
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
