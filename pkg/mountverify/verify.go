// Package mountverify finds out, against any node of any cluster, which guarantees for mounts hold: it is the equivalent
// of Kubernetes' end-to-end test "Mount propagation", with the host's view as an answer and not as a demand.
//
// Run makes three pods over one hostPath directory, one for each kind of mount propagation, and a fourth in the node's pid
// namespace that stands where the kubelet does. All run this very program from the node's own disk (RunAgent), so that no
// image with a shell is needed. Each mounts an empty tmpfs and looks for those of the others; they wait for one another by
// files in the directory. What they saw comes back in their termination messages. Nothing is left.
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

// API are the calls that Run makes; kubeapi.Client has them.
type API interface {
	NodeNames(ctx context.Context) ([]string, error)
	CreateNamespace(ctx context.Context, prefix string) (string, error)
	CreatePod(ctx context.Context, pod *corev1.Pod) error
	ReadPod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	RemoveNamespace(ctx context.Context, name string) error
}

// Options for Run. API, Image and Program are required.
type Options struct {
	API API
	// Node is the Node object's name; empty: the only one of the cluster.
	Node string
	// Image is any image that the node has or can pull; nothing of it is executed.
	Image string
	// Program is the path of this program on the node.
	Program string
	// Args make Program call RunAgent, with the flags --party, --volume, --dir, --caller-mounts, --limit and --report after them.
	Args []string
	// Dir is where the directory of the trial is made, on this machine and on the node; empty: the directory for temporary
	// files.
	Dir string
	// CanMount: this process may mount, so on the node's own machine it plays the host.
	CanMount bool
	// Limit is for the trial, without the removal of what it made. 0: two minutes.
	Limit time.Duration
	// Started is told the names of node and namespace.
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

// Run tries the propagation of mounts on a node and says which guarantees hold. When it cannot be found out the error says
// how far it came; of class errdefs.ErrTimeout when the pods did not end in time. What it made is removed in every case.
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
	results, err := trial(within, o, ns, dir, limit)
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
	return "", errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, fmt.Errorf("the cluster has %d nodes", len(names))),
		"--node NAME, one of: "+strings.Join(names, " "))
}

// makeDir makes the directory of the trial with all that the parties write to: where the node is this machine they may be
// another user.
func makeDir(parent string) (string, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	if os.Geteuid() == 0 { // it mounts there
		if err := hostinfo.RootOnlyForNow(parent); err != nil {
			return "", errdefs.Class(errdefs.ErrConfig, errdefs.WithHint(fmt.Errorf("make the directory of the trial: %w", err),
				"--dir DIR that only root can replace, or run it as the account"))
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
		if p != Host {                                                                                              // there this process writes, perhaps as root: nobody else may
			err = errors.Join(err, os.Chmod(marks, marksMode)) //nolint:gosec // a rootless node's root is any user here
		}
	}
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, tokenFile), nil, 0o600))
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// trial runs the pods, and the host's part, to their ends.
func trial(ctx context.Context, o Options, ns, dir string, limit time.Duration) (map[string]Result, error) {
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
	hosts.Go(func() (err error) { host, err = playHost(podsEnd, o, dir); return err })
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

// playHost waits until the node's agent is here, if it is on this machine, and plays the host if that wants it.
func playHost(ctx context.Context, o Options, dir string) (*Result, error) {
	a := &agent{dir: dir}
	if err := a.await(ctx, markHere, []string{Node}); err != nil {
		return nil, nil //nolint:nilerr // the pods have ended: the node is another machine, or nothing came of it
	}
	text, err := readMark(a.path(stateDir, Node, markHere))
	if err != nil || text != callerHosts {
		return nil, err
	}
	r, err := RunAgent(ctx, AgentOptions{Party: Host, Volume: dir, Dir: dir, CallerMounts: o.CanMount})
	return &r, err
}

// readMark reads a mark of a party whose directory any account here may write: this process may be root's.
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

// resultOf waits for a pod's end and reads its termination message.
func resultOf(ctx context.Context, api API, ns, party string) (Result, error) {
	last := "it was not looked at"
	for {
		pod, err := api.ReadPod(ctx, ns, party)
		if err != nil && ctx.Err() == nil {
			return Result{}, err
		}
		if err == nil {
			if t := terminated(pod); t != nil {
				return readAnswer(party, t)
			}
			last = standing(pod)
		}
		select {
		case <-ctx.Done():
			err := fmt.Errorf("wait for the end of pod %s: %w; it is %s", party, ctx.Err(), last)
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				err = errdefs.WithHint(errdefs.Class(errdefs.ErrTimeout, err),
					"# has the node the image (--image), and this program at the same path (--program)?")
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

func standing(pod *corev1.Pod) string {
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
