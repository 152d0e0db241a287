package config

import (
	"path/filepath"
	"strings"
)

// Limits of names, from RFC 1123 and Kubernetes' apimachinery.
const (
	maxNodeNameLength   = 63 // of the kubernetes.io/hostname label that carries the name
	maxNameLength       = 32 // because it is part of socket paths
	maxDNSNameLength    = 253
	maxLabelNameLength  = 63
	maxInterfaceNameLen = 15 // IFNAMSIZ without its NUL
)

func isLowerAlnum(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

func isAlnum(c byte) bool { return isLowerAlnum(c) || 'A' <= c && c <= 'Z' }

// isDNSLabel reports whether s is a DNS label: at most 63 lower case letters, digits and inner hyphens.
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

// isDNSSubdomain reports whether s consists of DNS labels separated by dots.
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

// ValidNodeName reports whether s can be the name of the Node object.
func ValidNodeName(s string) bool { return isDNSSubdomain(s) && len(s) <= maxNodeNameLength }

// isLabelName reports whether s is a valid label key without a prefix, or a valid label value.
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

// kubeletMaySet reports whether the kubelet may set the label on its own Node: it accepts only some labels of reserved domains
// (KEP-279), and NodeRestriction in the API server as well.
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

// isAbsolute reports whether p is a clean absolute path without control characters, which break mount tables and config files.
func isAbsolute(p string) bool {
	return filepath.IsAbs(p) && filepath.Clean(p) == p && !strings.ContainsFunc(p, isControl)
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// isImage is a coarse check of an image reference. The container runtime does the full check.
func isImage(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '"' || r == '\\' })
}
