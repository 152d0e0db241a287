package hostinfo

import (
	"os"
	"path/filepath"
)

// SbinDirs returns directories with programs that a node needs and that are often not on an account's PATH (Debian).
func SbinDirs() []string { return []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} }

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
