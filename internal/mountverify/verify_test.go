package mountverify

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeCluster ends every pod at once, with the state that end returns.
type fakeCluster struct {
	nodes   []string
	end     func(pod *corev1.Pod) *corev1.ContainerState
	mu      sync.Mutex
	pods    map[string]*corev1.Pod
	removed []string
}

func (f *fakeCluster) NodeNames(context.Context) ([]string, error) { return f.nodes, nil }

func (f *fakeCluster) CreateNamespace(_ context.Context, prefix string) (string, error) {
	return prefix + "x", nil
}

func (f *fakeCluster) CreatePod(_ context.Context, pod *corev1.Pod) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pods == nil {
		f.pods = map[string]*corev1.Pod{}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: *f.end(pod)}}
	f.pods[pod.Name] = pod
	return nil
}

func (f *fakeCluster) ReadPod(ctx context.Context, _, name string) (*corev1.Pod, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods[name], ctx.Err()
}

func (f *fakeCluster) RemoveNamespace(_ context.Context, name string) error {
	f.removed = append(f.removed, name)
	return nil
}

func ended(message string) *corev1.ContainerState {
	return &corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: message}}
}

func result(pod *corev1.Pod, message string) *corev1.ContainerState {
	r := saw(map[string][]string{Node: {Bidirectional, HostToContainer}, Bidirectional: {Node, HostToContainer}}, nil)[pod.Name]
	b, err := json.Marshal(answer{r, message})
	if err != nil {
		panic(err) // plain data
	}
	return ended(string(b))
}

func TestRun(t *testing.T) {
	t.Parallel()
	well := func(pod *corev1.Pod) *corev1.ContainerState { return result(pod, "") }
	for _, tc := range []struct {
		name  string
		nodes []string
		end   func(pod *corev1.Pod) *corev1.ContainerState
		err   string
		class error
		hint  string
	}{
		{"well", []string{"n"}, well, "", nil, ""},
		{"two nodes", []string{"a", "b"}, well, "the cluster has 2 nodes", errdefs.ErrConfig, "--node NAME, one of: a b"},
		{"no node", nil, well, "the cluster has no node", nil, ""},
		{"an agent's error", []string{"n"}, func(p *corev1.Pod) *corev1.ContainerState { return result(p, "no way") }, "no way", nil, ""},
		{"no result", []string{"n"}, func(*corev1.Pod) *corev1.ContainerState { return ended("exec format error") },
			"ended with code 1 and no result: exec format error", nil, ""},
		{"never started", []string{"n"}, func(*corev1.Pod) *corev1.ContainerState {
			return &corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}
		}, "it is ErrImagePull", errdefs.ErrTimeout, "# check that the node has the image (--image), and this program at the same path (--program)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := &fakeCluster{nodes: tc.nodes, end: tc.end}
			dir := t.TempDir()
			v, err := Run(t.Context(), Options{API: f, Image: "i", Program: "/p", Dir: dir, Limit: 50 * time.Millisecond})
			left, readErr := os.ReadDir(dir)
			assert.NilError(t, readErr)
			assert.Check(t, is.Len(left, 0), "the directory is left")
			assert.Equal(t, len(f.removed) == 1, f.pods != nil)
			if tc.err == "" {
				assert.NilError(t, err)
				assert.Equal(t, v.Text(), "1 no, 2 yes, 3 no")
				checkPods(t, f.pods)
				return
			}
			assert.ErrorContains(t, err, tc.err)
			if tc.class != nil {
				assert.ErrorIs(t, err, tc.class)
			}
			assert.Equal(t, strings.Join(errdefs.ReportOf(err).Hints, "\n"), tc.hint)
		})
	}
}

func checkPods(t *testing.T, pods map[string]*corev1.Pod) {
	t.Helper()
	assert.Equal(t, len(pods), 4)
	for name, want := range map[string]corev1.MountPropagationMode{
		None: "None", HostToContainer: "HostToContainer", Bidirectional: "Bidirectional", Node: "None",
	} {
		assert.Equal(t, *pods[name].Spec.Containers[0].VolumeMounts[0].MountPropagation, want)
		assert.Equal(t, pods[name].Spec.HostPID, name == Node)
		assert.Equal(t, pods[name].Spec.NodeName, "n")
	}
}

// party returns an agent for one party in the test directory that mounts nothing.
func party(dir, name string) *agent {
	return &agent{o: AgentOptions{Party: name}, dir: dir, hosts: true, views: map[string]view{name: {base: dir}}}
}

func TestParties(t *testing.T) {
	t.Parallel()
	dir, err := makeDir(t.TempDir())
	assert.NilError(t, err)
	var wg sync.WaitGroup
	for _, p := range Parties() {
		wg.Go(func() {
			r := Result{Party: p}
			assert.Check(t, party(dir, p).run(t.Context(), &r))
			assert.Check(t, is.Equal(r.Fault, "not tried"))
			assert.Check(t, is.Len(r.Sees, len(Parties())))
			for mount, sees := range r.Sees {
				assert.Check(t, !sees, "%s sees a mount of %s", p, mount)
			}
		})
	}
	wg.Wait()
}

func TestPartyThatEndsEarly(t *testing.T) {
	t.Parallel()
	dir, err := makeDir(t.TempDir())
	assert.NilError(t, err)
	assert.NilError(t, party(dir, None).mark(markGone, ""))
	for _, p := range Parties() {
		if p != None {
			assert.NilError(t, party(dir, p).mark(markHere, ""))
		}
	}
	err = party(dir, Node).run(t.Context(), &Result{})
	assert.ErrorContains(t, err, "none ended early")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.NilError(t, os.Remove(filepath.Join(dir, stateDir, None, markGone)))
	err = party(dir, Node).run(ctx, &Result{})
	assert.ErrorContains(t, err, `wait for mark "here" of none`)
	assert.Assert(t, errors.Is(err, context.Canceled))
}

func TestReport(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "report")
	assert.NilError(t, Report(file, Result{Party: None}, errors.New("no way")))
	b, err := os.ReadFile(file)
	assert.NilError(t, err)
	_, err = readAnswer(None, &corev1.ContainerStateTerminated{Message: string(b)})
	assert.Error(t, err, "pod none: no way")
}

// TestDirOfAnAccount checks that root does not mount in a directory that an account can replace, and does not follow or block
// on files of an account.
func TestDirOfAnAccount(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.Root)
	roots := testutil.RootOnlyDir(t)
	dir, err := makeDir(roots)
	assert.NilError(t, err)
	mark := filepath.Join(dir, stateDir, Node, markHere)
	assert.NilError(t, unix.Mkfifo(mark, 0o666))
	text, err := readMark(mark)
	assert.NilError(t, err)
	assert.Equal(t, text, "")
	assert.NilError(t, os.Remove(mark))
	assert.NilError(t, os.Symlink("/etc/passwd", mark))
	_, err = readMark(mark)
	assert.ErrorIs(t, err, unix.ELOOP)

	assert.NilError(t, os.Chown(roots, 64123, 0))
	_, err = makeDir(roots)
	assert.ErrorContains(t, err, "create the test directory: "+roots+" belongs to uid 64123")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
}
