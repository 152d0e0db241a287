package hostinfo

import (
	"os"
	"path/filepath"
)

// SbinDirs hold programs that a node needs and that an account's PATH often lacks (Debian).
func SbinDirs() []string { return []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} }

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
