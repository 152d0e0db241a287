package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// envSoak is the duration of TestSoak, such as 1h. `make soak` sets it.
const envSoak = "ROOTLESSNODE_E2E_SOAK"

// soakManifest has a Deployment behind a node port, and a pod that sends requests to it.
const soakManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: server
        image: rootlessnode.test/busybox:1
        command: [/bin/sh, -c, "mkdir /www; echo hello from the soak test > /www/index.html; exec httpd -f -p 8080 -h /www"]
        readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: %d}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: client, image: "rootlessnode.test/busybox:1", command: [/bin/sh, -c, "trap exit TERM; while true; do sleep 1; done"]}
`

const soakPort = 31187

// soak is the state of TestSoak.
type soak struct {
	*testNode
	// recovery has the times from the start of a fault until the node was usable again, by fault.
	recovery map[string][]time.Duration
}

// TestSoak does random harm to a node, waits each time until a user could use it, and checks at the end that nothing was lost and nothing
// is left: the same pods, forwarded ports, processes, mounts, cgroups, devices and files, and about the same descriptors and memory.
func TestSoak(t *testing.T) {
	t.Parallel()
	duration := 3 * time.Minute
	if v := os.Getenv(envSoak); v != "" {
		var err error
		duration, err = time.ParseDuration(v)
		assert.NilError(t, err, envSoak)
	}
	s := &soak{newNode(t, "e2e-soak", "--set", "restart.giveUpAfter=0"), map[string][]time.Duration{}}
	s.up()
	s.importImage()
	s.apply(fmt.Sprintf(soakManifest, soakPort))
	s.usable("start")
	before := s.inventory()
	faults := s.faults()
	names := slices.Sorted(maps.Keys(faults))
	for end := time.Now().Add(duration); time.Now().Before(end); {
		// Each fault once, in random order, then again.
		rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			began := time.Now()
			faults[name]()
			s.usable(name)
			s.recovery[name] = append(s.recovery[name], time.Since(began))
			if time.Now().After(end) {
				break
			}
		}
	}
	s.report()
	s.compare(before)
}

// faults returns the kinds of harm by name.
func (s *soak) faults() map[string]func() {
	faults := map[string]func(){
		"kill a shim":                func() { s.killOne("containerd-shim-runc-v2") },
		"kill the uplink":            func() { kill(s.t, uplink(s.t, s.testNode)) },
		"kill the guard":             func() { s.killOne("guard") },
		"kill all components":        s.killAll,
		"delete the DNS pod":         func() { s.kubectl("-n", "kube-system", "delete", "pod", "-l", "k8s-app=kube-dns", "--wait=false") },
		"delete all pods":            func() { s.kubectl("delete", "pod", "-l", "app=web", "--wait=false") },
		"churn of pods and Services": s.churn,
		"kill the node role":         func() { s.killRole(func(st status.Status) int { return nodeRole(s.t, st.ChildPID) }) },
		"kill the child":             func() { s.killRole(func(st status.Status) int { return st.ChildPID }) },
		"kill the parent":            func() { s.killRole(func(st status.Status) int { return st.ParentPID }) },
		"suspend":                    s.suspend,
		"down and up":                func() { s.down(); s.up() },
	}
	for _, c := range s.status().Components {
		if c.PID != 0 {
			faults["kill "+c.Name] = func() { kill(s.t, s.leafPID(c.Name)) }
		}
	}
	return faults
}

// leafPID returns the host's pid of a component's process.
func (s *soak) leafPID(component string) int {
	s.t.Helper()
	pids := s.leaf(component)
	assert.Assert(s.t, len(pids) > 0, "%s has no process", component)
	return pids[0]
}

// leaf returns the host's pids of a component's processes, without the shims that containerd starts, because pods depend on these.
func (s *soak) leaf(component string) []int {
	s.t.Helper()
	var pids []int
	text, err := os.ReadFile(filepath.Join(s.cgroupDir(), "system", component, "cgroup.procs"))
	assert.NilError(s.t, err)
	for f := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(f)
		assert.NilError(s.t, err)
		if cmdline, _ := os.ReadFile("/proc/" + f + "/cmdline"); !strings.Contains(string(cmdline), "containerd-shim") {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (s *soak) cgroupDir() string { return s.status().Cgroup.Path }

// killOne kills a random process of the node that runs a program.
func (s *soak) killOne(program string) {
	s.t.Helper()
	var pids []int
	for _, p := range processes(s.name) {
		pid, cmdline, _ := strings.Cut(p, " ")
		argv0, _, _ := strings.Cut(cmdline, " ")
		if filepath.Base(argv0) == program || program == "guard" && strings.HasPrefix(cmdline, "rootlessnode: guard of ") {
			v, err := strconv.Atoi(pid)
			assert.NilError(s.t, err)
			pids = append(pids, v)
		}
	}
	assert.Assert(s.t, len(pids) > 0, "no process runs %s", program)
	kill(s.t, pids[rand.IntN(len(pids))])
}

// killAll kills every component at once.
func (s *soak) killAll() {
	s.t.Helper()
	for _, c := range s.status().Components {
		if c.PID != 0 {
			for _, pid := range s.leaf(c.Name) {
				kill(s.t, pid)
			}
		}
	}
}

// suspend freezes all processes of the node for some seconds, as a suspended machine does.
func (s *soak) suspend() {
	s.t.Helper()
	file := filepath.Join(s.cgroupDir(), "cgroup.freeze")
	assert.NilError(s.t, os.WriteFile(file, []byte("1"), 0o600))
	meanwhile(s.t, 10*time.Second, "the node is reported as not responding", func() error {
		if st := s.status(); st.State != status.NodeDegraded {
			return fmt.Errorf("%s: %s", st.State, st.Reason)
		}
		return nil
	})
	assert.NilError(s.t, os.WriteFile(file, []byte("0"), 0o600))
}

// killRole kills a process whose end is the end of the node, and starts the node again.
func (s *soak) killRole(pid func(status.Status) int) {
	s.t.Helper()
	kill(s.t, pid(s.status()))
	noTrace(s.t, s.name)
	s.up()
}

// churn creates a pod and a Service with a node port, uses them and removes them.
func (s *soak) churn() {
	s.t.Helper()
	const port = soakPort + 1
	s.kubectl("run", "churn", "--image="+testImage, "--restart=Never", "--labels=app=echo", "--command", "--",
		"/bin/sh", "-c", "mkdir /www; echo hello from the churn > /www/index.html; exec httpd -f -p 8080 -h /www")
	s.apply(service("churn", "NodePort", fmt.Sprintf("{port: 80, targetPort: 8080, nodePort: %d}", port)))
	eventually(s.t, podLimit, "the new Service answers", func() error {
		return get(fmt.Sprintf("http://127.0.0.1:%d/", port), "hello from the churn")
	})
	s.kubectl("delete", "service/churn", "pod/churn", "--now")
	eventually(s.t, podLimit, "the port is closed", func() error { return refuses(port) })
}

// usable waits until the node is as a user needs it: ready, its Service answers on the host, its API accepts writes, and a pod can
// resolve names and reach a Service.
func (s *soak) usable(after string) {
	s.t.Helper()
	s.kubectlUntil(after, "annotate", "node", "--all", "--overwrite", "soak="+strconv.FormatInt(time.Now().UnixNano(), 36))
	eventually(s.t, podLimit, after+": the Service answers", func() error {
		return get(fmt.Sprintf("http://127.0.0.1:%d/", soakPort), "hello from the soak test")
	})
	s.kubectlUntil(after, "exec", "client", "--", "netprobe", "get", "http://web.default.svc.cluster.local/")
	eventually(s.t, podLimit, after+": the node is ready", func() error {
		if st := s.status(); st.State != status.NodeReady {
			return fmt.Errorf("%s: %s", st.State, st.Reason)
		}
		return nil
	})
}

// kubectlUntil runs kubectl until it succeeds.
func (s *soak) kubectlUntil(after string, args ...string) {
	s.t.Helper()
	eventually(s.t, podLimit, fmt.Sprintf("%s: kubectl %v", after, args), func() error {
		stdout, stderr, code := s.try(podLimit, append([]string{"kubectl", "--request-timeout=5s"}, args...)...)
		if code != 0 {
			return fmt.Errorf("%s%s", stdout, stderr)
		}
		return nil
	})
}

// report logs how long each kind of fault took to recover from.
func (s *soak) report() {
	s.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(s.recovery)) {
		times := slices.Sorted(slices.Values(s.recovery[name]))
		s.t.Logf("%-40s %3d times  median %5.1f s  max %5.1f s", name, len(times), times[len(times)/2].Seconds(), times[len(times)-1].Seconds())
	}
}
