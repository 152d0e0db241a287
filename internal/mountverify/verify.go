// Package mountverify tests which guarantees for mounts hold on any node of any cluster. It is the equivalent of Kubernetes'
// end-to-end test "Mount propagation", but reports the host's view instead of requiring a particular one.
//
// Run creates three pods with one hostPath directory, one for each kind of mount propagation, and a fourth pod in the node's
// pid namespace that enters the kubelet's mount namespace. All of them run this program from the node's disk (RunAgent), so
// that no image with a shell is needed. Each mounts an empty tmpfs and checks whether it sees those of the others. They
// synchronize with files in the directory, and return their results in termination messages. Run removes everything.
//
// Runs in: parent (Run), either (RunAgent).
package mountverify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// API contains the API calls of Run. kubeapi.Client implements it.
type API interface {
	NodeNames(ctx context.Context) ([]string, error)
	CreateNamespace(ctx context.Context, prefix string) (string, error)
	CreatePod(ctx context.Context, pod *corev1.Pod) error
	ReadPod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	RemoveNamespace(ctx context.Context, name string) error
}

// Options configures Run. API, Image and Program are required.
type Options struct {
	API API
	// Node is the name of the Node object. Empty: the only one of the cluster.
	Node string
	// Image is any image that the node has or can pull. Its programs are not executed.
	Image string
	// Program is the path of this program on the node.
	Program string
	// Args are the arguments with which Program calls RunAgent. The flags --party, --volume, --dir, --caller-mounts, --limit
	// and --report are appended.
	Args []string
	// Dir is the directory in which the test directory is created, on this machine and on the node. Empty: the directory for
	// temporary files.
	Dir string
	// CanMount: this process may mount, so it acts as the host if it is on the node's machine.
	CanMount bool
	// Limit is the timeout of the test, without the clean-up. 0: two minutes.
	Limit time.Duration
	// Started is called with the names of the node and the namespace.
	Started func(node, namespace string)
}

const (
	defaultLimit = 2 * time.Minute
	removeLimit  = time.Minute
	podPause     = 200 * time.Millisecond
	podGrace     = 5
	marksMode    = 0o777
	volumePath   = "/trial"
	programPath  = "/rootlessnode"
	reportPath   = "/dev/termination-log" // the kubelet's default
)

// Run tests the propagation of mounts on a node and returns which guarantees hold. If the pods do not end in time, the error
// has class errdefs.ErrTimeout and contains the state of a pod. It always removes everything that it created.
func Run(ctx context.Context, o Options) (_ *Verdict, err error) {
	limit := o.Limit
	if limit == 0 {
		limit = defaultLimit
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if o.Node == "" {
		if o.Node, err = onlyNode(within, o.API); err != nil {
			return nil, err
		}
	}
	dir, err := makeDir(o.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ns, err := o.API.CreateNamespace(within, "mounts-verify-")
	if err != nil {
		return nil, err
	}
	defer func() {
		gone, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeLimit)
		defer cancel()
		if removeErr := o.API.RemoveNamespace(gone, ns); removeErr != nil {
			err = errors.Join(err, errdefs.WithHint(removeErr, "kubectl delete namespace "+ns))
		}
	}()
	if o.Started != nil {
		o.Started(o.Node, ns)
	}
	results, err := runTest(within, o, ns, dir, limit)
	if err != nil {
		return nil, err
	}
	return evaluate(o.Node, dir, results)
}

func onlyNode(ctx context.Context, api API) (string, error) {
	names, err := api.NodeNames(ctx)
	switch {
	case err != nil:
		return "", err
	case len(names) == 1:
		return names[0], nil
	case len(names) == 0:
		return "", errors.New("the cluster has no node")
	}
	return "", errdefs.Config("the cluster has %d nodes", len(names)).Hint("--node NAME, one of: " + strings.Join(names, " "))
}

// makeDir creates the test directory, with subdirectories that all parties can write to: if this machine is the node, they may
// be another user.
func makeDir(parent string) (string, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	if os.Geteuid() == 0 { // root mounts there
		if err := hostinfo.RootOnlyForNow(parent); err != nil {
			return "", errdefs.Config("create the test directory: %w", err).
				Hint("use --dir with a directory that only root can replace, or run the command as the account")
		}
	}
	dir, err := os.MkdirTemp(parent, "rootlessnode-mounts-verify-")
	if err != nil {
		return "", errdefs.Class(errdefs.ErrConfig, err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	err = os.Chmod(dir, dirMode) //nolint:gosec // root of the node's user namespace has to enter
	for _, p := range Parties() {
		marks := filepath.Join(dir, stateDir, p)
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, placesDir, p), dirMode), os.MkdirAll(marks, dirMode)) //nolint:gosec // as above
		if p != Host {                                                                                              // this process, maybe root, writes there: no other account may
			err = errors.Join(err, os.Chmod(marks, marksMode)) //nolint:gosec // a rootless node's root is any user here
		}
	}
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, tokenFile), nil, 0o600))
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// runTest runs the pods, and the host's agent if it is on this machine, and returns the results of all parties.
func runTest(ctx context.Context, o Options, ns, dir string, limit time.Duration) (map[string]Result, error) {
	parties := []string{None, HostToContainer, Bidirectional, Node}
	for _, p := range parties {
		if err := o.API.CreatePod(ctx, podOf(o, p, ns, dir, limit)); err != nil {
			return nil, err
		}
	}
	results := map[string]Result{}
	all := make([]Result, len(parties))
	podsEnd, ended := context.WithCancel(ctx)
	defer ended()
	hosts, _ := errgroup.WithContext(ctx)
	var host *Result
	hosts.Go(func() (err error) { host, err = runHost(podsEnd, o, dir); return err })
	pods, gctx := errgroup.WithContext(ctx)
	for i, p := range parties {
		pods.Go(func() (err error) { all[i], err = resultOf(gctx, o.API, ns, p); return err })
	}
	err := pods.Wait()
	ended()
	if hostErr := hosts.Wait(); err == nil {
		err = hostErr
	}
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		results[r.Party] = r
		if r.Host != nil {
			results[Host] = *r.Host
		}
	}
	if host != nil {
		results[Host] = *host
	}
	return results, nil
}

// runHost waits until the node's agent has started, if that is on this machine, and acts as the host if the agent requests it.
func runHost(ctx context.Context, o Options, dir string) (*Result, error) {
	a := &agent{dir: dir}
	if err := a.await(ctx, markHere, []string{Node}); err != nil {
		return nil, nil //nolint:nilerr // the pods have ended: the node is another machine, or the test failed
	}
	text, err := readMark(a.path(stateDir, Node, markHere))
	if err != nil || text != callerHosts {
		return nil, err
	}
	r, err := RunAgent(ctx, AgentOptions{Party: Host, Volume: dir, Dir: dir, CallerMounts: o.CanMount})
	return &r, err
}

// readMark reads a mark of a party. It follows no links and does not block, because any account may write to the directory and
// this process may be root.
func readMark(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(len(callerHosts)+1)))
	return string(b), errors.Join(err, f.Close())
}

func podOf(o Options, party, ns, dir string, limit time.Duration) *corev1.Pod {
	yes, no, grace, root := true, false, int64(podGrace), int64(0)
	dirType, fileType := corev1.HostPathDirectoryOrCreate, corev1.HostPathFile
	mode := map[string]corev1.MountPropagationMode{
		HostToContainer: corev1.MountPropagationHostToContainer, Bidirectional: corev1.MountPropagationBidirectional,
	}[party]
	if mode == "" {
		mode = corev1.MountPropagationNone
	}
	command := append([]string{programPath}, o.Args...)
	command = append(command, "--party", party, "--volume", volumePath, "--dir", dir, "--limit", limit.String(), "--report", reportPath)
	if o.CanMount {
		command = append(command, "--caller-mounts")
	}
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: party},
		Spec: corev1.PodSpec{
			NodeName: o.Node, RestartPolicy: corev1.RestartPolicyNever, HostNetwork: true, HostPID: party == Node,
			TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "agent", Image: o.Image, ImagePullPolicy: corev1.PullIfNotPresent, Command: command,
				SecurityContext: &corev1.SecurityContext{Privileged: &yes, RunAsUser: &root, RunAsGroup: &root},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "trial", MountPath: volumePath, MountPropagation: &mode},
					{Name: "program", MountPath: programPath, ReadOnly: true},
				},
			}},
			Volumes: []corev1.Volume{
				{Name: "trial", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: &dirType}}},
				{Name: "program", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: o.Program, Type: &fileType}}},
			},
		},
	}
}

// resultOf waits for the end of a pod and returns the result in its termination message.
func resultOf(ctx context.Context, api API, ns, party string) (Result, error) {
	last := "in an unknown state"
	for {
		pod, err := api.ReadPod(ctx, ns, party)
		if err != nil && ctx.Err() == nil {
			return Result{}, err
		}
		if err == nil {
			if t := terminated(pod); t != nil {
				return readAnswer(party, t)
			}
			last = podState(pod)
		}
		select {
		case <-ctx.Done():
			err := fmt.Errorf("wait for the end of pod %s: %w; it is %s", party, ctx.Err(), last)
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				err = errdefs.WithHint(errdefs.Class(errdefs.ErrTimeout, err),
					"# check that the node has the image (--image), and this program at the same path (--program)")
			}
			return Result{}, err
		case <-time.After(podPause):
		}
	}
}

func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Terminated != nil {
			return c.State.Terminated
		}
	}
	if pod.Status.Phase == corev1.PodFailed { // refused by the kubelet
		return &corev1.ContainerStateTerminated{Reason: pod.Status.Reason, Message: pod.Status.Message}
	}
	return nil
}

func podState(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			return strings.TrimSpace(w.Reason + " " + w.Message)
		}
	}
	return string(pod.Status.Phase)
}

func readAnswer(party string, t *corev1.ContainerStateTerminated) (Result, error) {
	var a answer
	if err := json.Unmarshal([]byte(t.Message), &a); err != nil || a.Party != party {
		return a.Result, fmt.Errorf("pod %s ended with code %d and no result: %s", party, t.ExitCode, joined(t.Reason, t.Message))
	}
	if a.Error != "" {
		return a.Result, fmt.Errorf("pod %s: %s", party, a.Error)
	}
	return a.Result, nil
}

func joined(reason, message string) string { return strings.TrimSpace(reason + " " + message) }
