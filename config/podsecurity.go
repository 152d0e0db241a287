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

// admissionFlag is the flag of kube-apiserver that sets the file with the PodSecurity configuration.
const admissionFlag = "--admission-control-config-file"

func validatePodSecurity(c *NodeConfig, fs *faults) {
	if c.PodSecurity == PodSecurityPrivileged {
		return
	}
	if c.Joins() {
		fs.add("podSecurity", "podSecurity: privileged    # and label the namespaces, or set podSecurity on the control plane's node",
			"%s has no effect on a worker, because the cluster's API server admits the pods", c.PodSecurity)
	}
	for i, arg := range c.ControlPlane.APIServerExtraArgs {
		if name, _, _ := strings.Cut(arg, "="); name == admissionFlag {
			fs.add(fmt.Sprintf("controlPlane.apiServerExtraArgs[%d]", i), "podSecurity: privileged    # and configure PodSecurity in that file",
				"%s replaces the file that configures podSecurity %s", admissionFlag, c.PodSecurity)
		}
	}
}
