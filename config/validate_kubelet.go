package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

func validateKubelet(c *NodeConfig, fs *faults) {
	k := c.Kubelet
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
		if g == "" || len(validation.IsValidLabelValue(g)) > 0 {
			fs.add("kubelet.featureGates."+g, "", "invalid feature gate name")
		}
		if g == "KubeletInUserNamespace" && !k.FeatureGates[g] {
			fs.add("kubelet.featureGates."+g, "", "must not be disabled, because the kubelet does not start in a user namespace without it")
		}
	}
	high, low := k.ImageGCHighThresholdPercent, k.ImageGCLowThresholdPercent
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
	q, err := resource.ParseQuantity(s)
	return err == nil && q.Sign() >= 0
}
