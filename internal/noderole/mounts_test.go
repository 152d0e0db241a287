package noderole

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func TestReportMounts(t *testing.T) {
	t.Parallel()
	const cut, unshared = "1: mounts of the host do not reach the node", "2: a mount does not reach volumes"
	for _, tc := range []struct {
		name, propagation string
		tried             mountsResult
		text, hint        string
		reasons           []string
		ok                bool
	}{
		{"all", "rslave", mountsResult{mountns.Guarantees{HostToInside: true, Inside: true}, nil}, "1 yes, 2 yes, 3 no", "", nil, true},
		{"private host", "rslave", mountsResult{mountns.Guarantees{Inside: true}, nil}, "1 no, 2 yes, 3 no", propagationHint,
			[]string{cut + ": the host's root is private"}, true},
		{"rprivate", "rprivate", mountsResult{mountns.Guarantees{Inside: true}, nil}, "1 no, 2 yes, 3 no",
			"# set mounts.propagation: rslave, then restart the node", []string{cut + ": mounts.propagation is rprivate"}, true},
		{"not shared", "rslave", mountsResult{mountns.Guarantees{HostToInside: true}, []string{unshared}}, "1 yes, 2 no, 3 no", "",
			[]string{unshared}, false},
	} {
		log := logrus.New()
		log.SetOutput(io.Discard)
		w := &mountWatch{
			propagation: tc.propagation, log: log, hub: status.NewHub(status.Status{}, status.Options{}),
			processes: func() []supervisor.UnitStatus { return nil },
		}
		w.report(tc.tried)
		s := w.hub.Snapshot()
		assert.Equal(t, s.Mounts.Text(), tc.text, tc.name)
		assert.DeepEqual(t, s.Mounts.Reasons, tc.reasons)
		assert.Equal(t, s.Mounts.Hint, tc.hint, tc.name)
		assert.Equal(t, s.Condition(status.ConditionSharedMounts).OK, tc.ok, tc.name)
		w.hub.Close()
	}
}

// TestMountsFailure checks that the reason for which the mounts role could not test is the error, without the log format of the role.
func TestMountsFailure(t *testing.T) {
	t.Parallel()
	_, err := parseMounts([]byte(`{"guarantees":{},"reasons":null,"failure":"mkdir /x: no space left on device"}`))
	assert.Error(t, err, "test mount propagation: mkdir /x: no space left on device")
	r, err := parseMounts([]byte(`{"guarantees":{},"reasons":["2: not shared"]}`))
	assert.NilError(t, err)
	assert.DeepEqual(t, r.Reasons, []string{"2: not shared"})
}

// TestWrongMountNamespace checks that a process in a different mount namespace than the test is reported.
func TestWrongMountNamespace(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.UserNS)
	other := exec.CommandContext(t.Context(), "cat")
	other.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
	}
	stdin, err := other.StdinPipe()
	assert.NilError(t, err)
	assert.NilError(t, other.Start())
	defer func() { assert.Check(t, errors.Join(stdin.Close(), other.Wait())) }()
	got := wrongMountNamespace([]supervisor.UnitStatus{{Name: "kubelet", PID: os.Getpid()}, {Name: "containerd", PID: other.Process.Pid}})
	assert.DeepEqual(t, got, []string{fmt.Sprintf("2: containerd (pid %d) is in a different mount namespace than the node", other.Process.Pid)})
}
