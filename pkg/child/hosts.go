package child

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
)

const hostsFile = "/etc/hosts"

// ensureHosts makes sure that the file, a copied-up link to that of the host, is readable and resolves localhost to loopback addresses.
// RootlessKit's child copies it and does not continue without it; port-forward and programs in pods of the host network need localhost.
// The file is replaced, so that the host's file does not change.
func ensureHosts(path string) error {
	content, err := os.ReadFile(path) // fails if the host has no file, a dangling link, or a file that others cannot read
	if err != nil {
		content = nil
	}
	missing := missingLocalhost(content)
	if err == nil && missing == "" {
		return nil
	}
	if err := os.RemoveAll(path); err != nil { // a link to a directory cannot be replaced by a rename
		return fmt.Errorf("replace %s inside: %w", path, err)
	}
	return atomicfile.Write(path, append([]byte(missing), content...), 0o644)
}

// missingLocalhost returns the lines for localhost that a hosts file lacks.
func missingLocalhost(content []byte) string {
	has := map[string]bool{}
	for line := range bytes.Lines(content) {
		text, _, _ := strings.Cut(string(line), "#")
		fields := strings.Fields(text)
		for _, name := range fields[min(1, len(fields)):] {
			has[fields[0]+" "+strings.ToLower(name)] = true
		}
	}
	var missing strings.Builder
	if !has["127.0.0.1 localhost"] {
		missing.WriteString("127.0.0.1 localhost\n")
	}
	if !has["::1 localhost"] {
		missing.WriteString("::1 localhost ip6-localhost ip6-loopback\n")
	}
	return missing.String()
}
