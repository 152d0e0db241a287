package status

import (
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

func comp(name string, s ComponentState, reason string, needs ...string) Component {
	return Component{Name: name, State: s, Reason: reason, WaitingFor: needs}
}

func TestDerive(t *testing.T) {
	t.Parallel()
	up := []Component{comp("containerd", Ready, ""), comp("setup", Done, ""), comp("kubelet", Ready, "")}
	nodeReady := Condition{Type: ConditionNodeReady, OK: true}
	notReady := Condition{Type: ConditionNodeReady, Message: "CNI is not there"}
	for _, tc := range []struct {
		name   string
		in     DeriveInput
		state  State
		reason string
	}{
		{"nothing yet", DeriveInput{}, NodeStarting, "waiting for the Node object to be Ready"},
		{"all up and ready", DeriveInput{Components: up, Conditions: []Condition{nodeReady}}, NodeReady, ""},
		{"all up, object not ready", DeriveInput{Components: up, Conditions: []Condition{notReady}},
			NodeStarting, "the Node object is not Ready: CNI is not there"},
		{"object ready, a component not yet", DeriveInput{Components: append(up[:2:2], comp("kube-proxy", Running, "healthz: refused")), Conditions: []Condition{nodeReady}},
			NodeStarting, "kube-proxy is running: healthz: refused"},
		{"backoff precedes starting, starting precedes waiting", DeriveInput{Components: []Component{
			comp("a", Waiting, "", "b"), comp("b", Starting, ""), comp("c", Backoff, "exit 1")}},
			NodeStarting, "c is backing off: exit 1"},
		{"starting precedes waiting", DeriveInput{Components: []Component{comp("a", Waiting, "", "b"), comp("b", Starting, "")}},
			NodeStarting, "b is starting"},
		{"waiting names its needs", DeriveInput{Components: []Component{comp("a", Waiting, "", "b", "c")}},
			NodeStarting, "a is waiting for b, c"},
		{"backing off after ready", DeriveInput{WasReady: true, Components: append(up[:2:2], comp("kubelet", Backoff, "exit 2")), Conditions: []Condition{nodeReady}},
			NodeDegraded, "kubelet is backing off: exit 2"},
		{"object not ready after ready", DeriveInput{WasReady: true, Components: up, Conditions: []Condition{notReady}},
			NodeDegraded, "the Node object is not Ready: CNI is not there"},
		{"object gone after ready", DeriveInput{WasReady: true, Components: up}, NodeDegraded, "the Node object has not been seen"},
		{"a condition false at first ready", DeriveInput{Components: up, Conditions: []Condition{nodeReady, {Type: ConditionUplink, Reason: "SlirpDead"}}},
			NodeDegraded, "Uplink is not met: SlirpDead"},
		{"a condition is pending at first", DeriveInput{Components: up, Conditions: []Condition{nodeReady, {Type: ConditionClusterDNS, Pending: true, Message: "no pod is ready"}}},
			NodeStarting, "waiting for ClusterDNS: no pod is ready"},
		{"a condition is pending after ready", DeriveInput{WasReady: true, Components: up, Conditions: []Condition{nodeReady, {Type: ConditionClusterDNS, Pending: true}}},
			NodeDegraded, "waiting for ClusterDNS"},
		{"a warning", DeriveInput{Components: up, Conditions: []Condition{nodeReady, {Type: ConditionDatastore, OK: true, Warning: true, Reason: "NearlyFull"}}}, NodeReady, ""},
		{"a forward failed", DeriveInput{Components: up, Conditions: []Condition{nodeReady}, Ports: []Port{
			{HostIP: "127.0.0.1", HostPort: 80, Proto: "tcp", State: PortFailed, Error: "permission denied"},
			{HostIP: "127.0.0.1", HostPort: 8080, Proto: "tcp", State: PortPending}}},
			NodeDegraded, "port 127.0.0.1:80/tcp is not forwarded: permission denied"},
		{"several things are missing", DeriveInput{WasReady: true, Components: []Component{comp("kubelet", Starting, "")}, Conditions: []Condition{notReady}},
			NodeDegraded, "kubelet is starting; the Node object is not Ready: CNI is not there"},
		{"recovered", DeriveInput{WasReady: true, Components: up, Conditions: []Condition{nodeReady}}, NodeReady, ""},
		{"given up", DeriveInput{WasReady: true, Components: append(up[:2:2], comp("kubelet", Failed, "5 starts")), Conditions: []Condition{nodeReady}},
			NodeFailed, "kubelet is failed: 5 starts"},
		{"failed for a reason of its own", DeriveInput{Failure: "uplink lost", Components: up}, NodeFailed, "uplink lost"},
		{"stopping precedes failed", DeriveInput{Failure: "uplink lost", Stopping: "stop requested"}, NodeStopping, "stop requested"},
		{"stopped", DeriveInput{Stopping: "stop requested", Stopped: true}, NodeStopped, "stop requested"},
		{"stopped after a failure", DeriveInput{Failure: "uplink lost", Stopping: "stop requested", Stopped: true}, NodeFailed, "uplink lost"},
		{"stopped components while stopping", DeriveInput{Stopping: "stop requested", Components: []Component{comp("kubelet", Stopped, "")}}, NodeStopping, "stop requested"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			state, reason := Derive(tc.in)
			assert.Check(t, is.Equal(state, tc.state))
			assert.Check(t, is.Equal(reason, tc.reason))
		})
	}
}
