package config

import (
	"path/filepath"
	"strings"
)

// Limits of names, from RFC 1123 and Kubernetes' apimachinery.
const (
	maxNodeNameLength   = 63 // of the kubernetes.io/hostname label that carries the name
	maxNameLength       = 32 // of ours: it stands in socket paths
	maxDNSNameLength    = 253
	maxLabelNameLength  = 63
	maxInterfaceNameLen = 15 // IFNAMSIZ less its NUL
)

func isLowerAlnum(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

func isAlnum(c byte) bool { return isLowerAlnum(c) || 'A' <= c && c <= 'Z' }

// isDNSLabel: lower case letters, digits and inner hyphens, at most 63.
func isDNSLabel(s string) bool {
	if s == "" || len(s) > 63 || !isLowerAlnum(s[0]) || !isLowerAlnum(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if !isLowerAlnum(s[i]) && s[i] != '-' {
			return false
		}
	}
	return true
}

// isDNSSubdomain: DNS labels joined by dots.
func isDNSSubdomain(s string) bool {
	if len(s) > maxDNSNameLength {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !isDNSLabel(label) {
			return false
		}
	}
	return true
}

// ValidNodeName reports whether a Node object of a rootlessnode may have the name.
func ValidNodeName(s string) bool { return isDNSSubdomain(s) && len(s) <= maxNodeNameLength }

// isLabelName: what a label key is after its prefix, and what a label value is.
func isLabelName(s string) bool {
	if s == "" || len(s) > maxLabelNameLength || !isAlnum(s[0]) || !isAlnum(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if !isAlnum(s[i]) && !strings.ContainsRune("-_.", rune(s[i])) {
			return false
		}
	}
	return true
}

func isLabelKey(s string) bool {
	prefix, name, ok := strings.Cut(s, "/")
	if !ok {
		return isLabelName(s)
	}
	return isDNSSubdomain(prefix) && isLabelName(name)
}

// kubeletMaySet tells whether the kubelet accepts to set a label of the reserved domains on its own Node
// (KEP-279, and NodeRestriction on the other side).
func kubeletMaySet(key string) bool {
	prefix, _, _ := strings.Cut(key, "/")
	if !within(prefix, "kubernetes.io") && !within(prefix, "k8s.io") {
		return true
	}
	if within(prefix, "kubelet.kubernetes.io") || within(prefix, "node.kubernetes.io") {
		return true
	}
	switch key {
	case "kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os",
		"topology.kubernetes.io/region", "topology.kubernetes.io/zone",
		"beta.kubernetes.io/arch", "beta.kubernetes.io/os", "beta.kubernetes.io/instance-type",
		"failure-domain.beta.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone":
		return true
	}
	return false
}

func within(domain, parent string) bool {
	return domain == parent || strings.HasSuffix(domain, "."+parent)
}

// isAbsolute: an absolute path in its shortest form, without the letters that break mount tables and config files.
func isAbsolute(p string) bool {
	return filepath.IsAbs(p) && filepath.Clean(p) == p && !strings.ContainsFunc(p, isControl)
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// isImage: a coarse look at an image reference; the container store has the last word.
func isImage(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '"' || r == '\\' })
}
