package config

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/kubelet/pkg/apis"
)

// Limits of names that are shorter than those of Kubernetes.
const (
	maxNodeNameLength   = validation.LabelValueMaxLength // of the kubernetes.io/hostname label that carries the name
	maxNameLength       = 32                             // because it is part of socket paths
	maxInterfaceNameLen = 15                             // IFNAMSIZ without its NUL
)

// isDNSLabel reports whether s is a DNS label (RFC 1123) in lower case.
func isDNSLabel(s string) bool { return len(validation.IsDNS1123Label(s)) == 0 }

// isDNSSubdomain reports whether s consists of DNS labels separated by dots.
func isDNSSubdomain(s string) bool {
	return len(validation.IsDNS1123Subdomain(s)) == 0 && !slices.ContainsFunc(strings.Split(s, "."), func(l string) bool { return !isDNSLabel(l) })
}

// ValidNodeName reports whether s can be the name of the Node object.
func ValidNodeName(s string) bool { return isDNSSubdomain(s) && len(s) <= maxNodeNameLength }

// kubeletMaySet reports whether the kubelet may set the label on its own Node: it accepts only some labels of reserved domains
// (KEP-279), and NodeRestriction in the API server as well.
func kubeletMaySet(key string) bool {
	prefix, _, _ := strings.Cut(key, "/")
	return apis.IsKubeletLabel(key) || !within(prefix, "kubernetes.io") && !within(prefix, "k8s.io")
}

func within(domain, parent string) bool {
	return domain == parent || strings.HasSuffix(domain, "."+parent)
}
