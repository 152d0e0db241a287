package errdefs

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Action is an operation of rootlessnode that a hint suggests. Each program has its own words or commands for it.
type Action string

// Actions and their arguments. An argument FIELD=VALUE is a setting or an option.
const (
	// Start starts the node. Arguments: configuration fields, or TokenFile.
	Start Action = "start"
	// Stop stops the node, and DeleteData stops it and deletes its data.
	Stop       Action = "stop"
	DeleteData Action = "delete-data"
	ShowStatus Action = "show-status"
	// ShowLogs shows the log of a component. Argument: the component.
	ShowLogs Action = "show-logs"
	// CheckHost checks whether the host meets the node's requirements.
	CheckHost Action = "check-host"
	// ListForwards lists the forwarded ports. The argument of the others is a forward, HOSTPORT:NODEPORT.
	ListForwards  Action = "list-forwards"
	AddForward    Action = "add-forward"
	RemoveForward Action = "remove-forward"
	// ListTokens lists the bootstrap tokens of a control plane. CreateToken creates one and shows how to join with it. Optional
	// argument: node, the only node name for which the token is valid.
	ListTokens  Action = "list-tokens"
	CreateToken Action = "create-token"
	// VerifyMounts verifies the mount guarantees of a node. Arguments: kubeconfig and image.
	VerifyMounts Action = "verify-mounts"
	// RestoreSnapshot restores a snapshot of the cluster's state on a stopped node, and DeleteSnapshot deletes one. Argument: its name.
	RestoreSnapshot Action = "restore-snapshot"
	DeleteSnapshot  Action = "delete-snapshot"
	// ShowConfig shows every configuration field with its meaning and default.
	ShowConfig Action = "show-config"
	// Kubectl runs kubectl as the administrator of the node's cluster. Arguments: those of kubectl, without any that contains =.
	Kubectl Action = "kubectl"
	// MergeKubeconfig adds the node's context to the kubeconfig of the account.
	MergeKubeconfig Action = "merge-kubeconfig"
	// SetUpHost prepares the host for an account, CreateAccount also creates the account, and UndoHost reverts it. Only root can do
	// it. Argument: the account.
	SetUpHost     Action = "set-up-host"
	CreateAccount Action = "create-account"
	UndoHost      Action = "undo-host"
	// The other actions concern a mount namespace of root. Arguments: its name; for CreateMounts the propagation, for DeleteMounts
	// force, for ConfigureMounts the units that start in it.
	CreateMounts    Action = "create-mount-namespace"
	DeleteMounts    Action = "delete-mount-namespace"
	ConfigureMounts Action = "configure-mount-namespace"
)

// TokenFile is the setting of Start for the file with a bootstrap token, which is not a configuration field.
const TokenFile = "tokenFile"

// plain are the plain words for the actions.
var plain = map[Action]string{
	Start: "start the node", Stop: "stop the node", DeleteData: "delete the data of the node", ShowStatus: "show the status of the node",
	ShowLogs: "show the logs of the node:", CheckHost: "check the host for the node",
	ListForwards: "list the forwarded ports of the node", AddForward: "forward a port to the node:",
	RemoveForward: "stop forwarding a port to the node:", ListTokens: "list the bootstrap tokens", CreateToken: "create a bootstrap token",
	VerifyMounts: "verify the mount guarantees of the node", RestoreSnapshot: "restore the snapshot", DeleteSnapshot: "delete the snapshot",
	Kubectl: "run kubectl for the cluster of the node:", ShowConfig: "show all configuration fields",
	MergeKubeconfig: "add the context of the node to the kubeconfig",
	SetUpHost:       "as root, prepare the host for the account", CreateAccount: "as root, create and prepare the account",
	UndoHost:     "as root, undo the preparation of the host for the account",
	CreateMounts: "create the mount namespace", DeleteMounts: "delete the mount namespace",
	ConfigureMounts: "configure units to start in the mount namespace",
}

// Actions returns all actions, sorted.
func Actions() []Action { return slices.Sorted(maps.Keys(plain)) }

// Step is one step of a hint: Text, or an action.
type Step struct {
	Action Action   `json:"action,omitempty"`
	Args   []string `json:"args,omitempty"`
	// Node is the name of the node. Empty: the node that the error is about.
	Node string `json:"node,omitempty"`
	// Text consists of shell commands and comments for this host, or is an instruction. With an action it is a remark about it.
	Text string `json:"text,omitempty"`
	// As is an account: root has to do the action as this account, in its cgroup.
	As string `json:"as,omitempty"`
	// Program is the path of the program to use. Empty: this program.
	Program string `json:"program,omitempty"`
	// Sudo is set if the account has to use sudo for the action.
	Sudo bool `json:"sudo,omitempty"`
	// Alternative marks an action that can replace the steps before it.
	Alternative bool `json:"alternative,omitempty"`
}

// words returns the action in plain words.
func (s Step) words() string {
	text := plain[s.Action]
	if s.Node != "" {
		text = strings.Replace(text, "the node", fmt.Sprintf("node %q", s.Node), 1)
	}
	if s.As != "" {
		text = fmt.Sprintf("as root, for account %s: %s", s.As, text)
	}
	return strings.Join(append([]string{text}, s.Args...), " ")
}

// Hint is how to fix an error: steps in their order.
type Hint []Step

// Text returns a hint of lines that are not actions. See Step.Text.
func Text(lines ...string) Hint { return Hint(nil).Text(lines...) }

// Do returns a hint with an action.
func Do(action Action, args ...string) Hint { return Hint(nil).Do(action, args...) }

// Text appends lines that are not actions.
func (h Hint) Text(lines ...string) Hint { return append(h, Step{Text: strings.Join(lines, "\n")}) }

// Do appends an action.
func (h Hint) Do(action Action, args ...string) Hint {
	return append(h, Step{Action: action, Args: args})
}

// Note adds a remark to the last step, which is an action.
func (h Hint) Note(text string) Hint {
	h[len(h)-1].Text = text
	return h
}

// Render returns the hint as text, one line for each action, with the caller's words for actions.
func (h Hint) Render(words func(Step) string) string {
	lines := make([]string, len(h))
	for i, s := range h {
		switch {
		case s.Action == "":
			lines[i] = s.Text
		case s.Alternative:
			lines[i] = "# " + s.Text + ": " + words(s)
		case s.Text != "":
			lines[i] = words(s) + "    # " + s.Text
		default:
			lines[i] = words(s)
		}
	}
	return strings.Join(lines, "\n")
}

// String returns the hint in plain words.
func (h Hint) String() string { return h.Render(Step.words) }
