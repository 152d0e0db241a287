package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

func (c *NodeConfig) validateKubelet(fs *faults) {
	k := c.Kubelet
	if k.MaxPods < 1 {
		fs.add("kubelet.maxPods", "", "%d: must be at least 1", k.MaxPods)
	}
	for _, signal := range sortedKeys(k.EvictionHard) {
		at := "kubelet.evictionHard." + signal
		if !slices.Contains(evictionSignals(), signal) {
			fs.add(at, "", "unknown signal: must be one of %s", strings.Join(evictionSignals(), ", "))
		}
		if v := k.EvictionHard[signal]; !isThreshold(v) {
			fs.add(at, "", "%q: must be a percentage such as \"1%%\" or a quantity such as \"100Mi\"", v)
		}
	}
	for i, e := range k.EnforceNodeAllocatable {
		if e == EnforceAuto && len(k.EnforceNodeAllocatable) > 1 {
			fs.add("kubelet.enforceNodeAllocatable", "", "auto cannot be combined with other values")
		}
		oneOf(fs, fmt.Sprintf("kubelet.enforceNodeAllocatable[%d]", i), e,
			EnforceAuto, "none", "pods", "system-reserved", "kube-reserved", "system-reserved-compressible", "kube-reserved-compressible")
	}
	for _, g := range sortedKeys(k.FeatureGates) {
		if !isLabelName(g) {
			fs.add("kubelet.featureGates."+g, "", "invalid feature gate name")
		}
		if g == "KubeletInUserNamespace" && !k.FeatureGates[g] {
			fs.add("kubelet.featureGates."+g, "", "must not be disabled, because the kubelet does not start in a user namespace without it")
		}
	}
	high, low := k.ImageGCHighThresholdPercent, k.ImageGCLowThresholdPercent
	inRange(fs, "kubelet.imageGCHighThresholdPercent", high, 0, 100)
	inRange(fs, "kubelet.imageGCLowThresholdPercent", low, 0, 100)
	if low >= high {
		fs.add("kubelet.imageGCLowThresholdPercent", "", "%d: must be less than kubelet.imageGCHighThresholdPercent, which is %d", low, high)
	}
	for _, fixed := range []string{"apiVersion", "kind"} {
		if _, ok := k.ExtraConfig[fixed]; ok {
			fs.add("kubelet.extraConfig."+fixed, "", "cannot be changed")
		}
	}
}

// isThreshold reports whether s is a percentage from 0 to 100 or a quantity.
func isThreshold(s string) bool {
	if share, ok := strings.CutSuffix(s, "%"); ok {
		p, err := strconv.ParseFloat(share, 64)
		return err == nil && p >= 0 && p <= 100
	}
	for _, unit := range []string{"Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "k", "M", "G", "T", "P", "E"} {
		if amount, ok := strings.CutSuffix(s, unit); ok {
			s = amount
			break
		}
	}
	n, err := strconv.ParseFloat(s, 64)
	return err == nil && n >= 0 && !strings.ContainsAny(s, "xXpPiInN+-_")
}
