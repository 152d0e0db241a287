package layout

import (
	"errors"
	"os"
	"strings"
)

// Roles of a process of a node: the values of EnvRole. A process without a role is the host program: the command line, or the program
// that embeds the node.
const (
	// RoleParent runs the node on the host's side.
	RoleParent = "parent"
	// RoleGuard cleans up after the parent.
	RoleGuard = "guard"
	// RoleChild is process 1 inside: RootlessKit's child.
	RoleChild = "child"
	// RoleNode supervises the components inside.
	RoleNode = "node"
	// RoleMounts tests mount propagation inside.
	RoleMounts = "mounts"
	// RoleCredentials is the kubelet's plugin that gets the account's logins at registries.
	RoleCredentials = "credentials"
	// RoleRemove removes the data of a node, RoleRemoveChild is its child, and RoleRemoveInside removes the files inside.
	RoleRemove       = "remove"
	RoleRemoveChild  = "remove-child"
	RoleRemoveInside = "remove-inside"
	// RoleTrial tries operations of the start in namespaces for the preflight. It executes itself again as RoleTrialInside.
	RoleTrial       = "trial"
	RoleTrialInside = "trial-inside"
	// RoleHold keeps a user namespace alive until its standard input ends (internal/hostexec).
	RoleHold = "hold"
)

// RoleEnv returns the variables with which a new process has a role.
func RoleEnv(role string, rt Runtime) []string {
	return []string{EnvRole + "=" + role, EnvRuntimeDir + "=" + rt.Dir}
}

// SetRole sets the variables of RoleEnv in the environment of this process, because RootlessKit passes that to the process that it
// starts.
func SetRole(role string, rt Runtime) error {
	return errors.Join(os.Setenv(EnvRole, role), os.Setenv(EnvRuntimeDir, rt.Dir))
}

// TakeRole returns the role of this process, which is empty in the host program, and the runtime dir. It calls DropPrivateEnv in a
// process with a role, except in a child, because RootlessKit reads its keys there and executes this program again.
func TakeRole() (role string, rt Runtime) {
	role, rt = os.Getenv(EnvRole), Runtime{Dir: os.Getenv(EnvRuntimeDir)}
	if role != "" && role != RoleChild && role != RoleRemoveChild {
		DropPrivateEnv()
	}
	return role, rt
}

// DropPrivateEnv removes the private variables from the environment of this process, so that the programs that it starts do not get
// them.
func DropPrivateEnv() {
	for _, kv := range os.Environ() {
		if isPrivateEnv(kv) {
			key, _, _ := strings.Cut(kv, "=")
			_ = os.Unsetenv(key) // fails only for invalid keys
		}
	}
}

// isPrivateEnv reports whether a variable (KEY=VALUE) has a private key.
func isPrivateEnv(kv string) bool {
	return strings.HasPrefix(kv, "_ROOTLESSNODE_") || strings.HasPrefix(kv, "_ROOTLESSKIT_")
}
