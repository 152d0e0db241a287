package config

import (
	"fmt"
	"strings"
)

// Pod Security Standards, as PodSecurity names them.
const (
	PodSecurityPrivileged = "privileged"
	PodSecurityBaseline   = "baseline"
	PodSecurityRestricted = "restricted"
)

// admissionFlag is the flag of kube-apiserver by which PodSecurity takes effect.
const admissionFlag = "--admission-control-config-file"

func (c *NodeConfig) validatePodSecurity(fs *faults) {
	oneOf(fs, "podSecurity", c.PodSecurity, PodSecurityPrivileged, PodSecurityBaseline, PodSecurityRestricted)
	if c.PodSecurity == PodSecurityPrivileged {
		return
	}
	if c.Joins() {
		fs.add("podSecurity", "podSecurity: privileged    # and label the namespaces, or set podSecurity on the control plane's node",
			"%s has no effect on a worker: the API server of the cluster admits its pods", c.PodSecurity)
	}
	for i, arg := range c.ControlPlane.APIServerExtraArgs {
		if name, _, _ := strings.Cut(arg, "="); name == admissionFlag {
			fs.add(fmt.Sprintf("controlPlane.apiServerExtraArgs[%d]", i), "podSecurity: privileged    # and configure PodSecurity in that file",
				"%s replaces the file by which podSecurity %s takes effect", admissionFlag, c.PodSecurity)
		}
	}
}
