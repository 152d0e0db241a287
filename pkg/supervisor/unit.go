package supervisor

import (
	"context"
	"syscall"
	"time"
)

// What an empty field of Unit, Backoff and Options stands for.
const (
	DefaultStopGrace = 10 * time.Second
	// Those of kubeadm's liveness probes: on a machine that is busy with other things an answer can take long, and a
	// restart takes longer.
	DefaultLivePeriod   = 10 * time.Second
	DefaultLiveTimeout  = 15 * time.Second
	DefaultLiveFailures = 8

	DefaultBackoffQuick      = 100 * time.Millisecond
	DefaultBackoffInitial    = 500 * time.Millisecond
	DefaultBackoffMax        = 30 * time.Second
	DefaultBackoffFactor     = 2
	DefaultBackoffResetAfter = time.Minute

	DefaultTailLines   = 20
	DefaultLogMaxBytes = 16 << 20
	DefaultKillWait    = 5 * time.Second
)

// Process is a program to run.
type Process struct {
	// Path of the executable, absolute.
	Path string
	// Args is the whole argv, its first one included; nil stands for Path alone.
	Args []string
	// Env is the whole environment; nil stands for that of the supervisor.
	Env []string
	// Dir is the working directory; empty for that of the supervisor.
	Dir string
	// LogPath is the file that standard output and error are appended to, made with mode 0600. When it has grown to
	// Options.LogMaxBytes it becomes LogPath.1, at the start of a process and while it runs. Empty for no file. A file
	// that cannot be written any more (full disk) loses lines; it does not stop the process.
	LogPath string
	// CgroupDir is a cgroup v2 directory of this unit alone. The process is born in it (CLONE_INTO_CGROUP, see clone(2);
	// Linux 5.7), and what is left in it or below when the process has died is killed. It must exist, and nobody may have
	// written to its cgroup.kill (a kernel fault then kills every process at birth). Empty for the cgroup of the
	// supervisor.
	CgroupDir string
	// OOMScoreAdj is written to /proc/PID/oom_score_adj. A refusal (lowering needs CAP_SYS_RESOURCE on the host) is logged
	// and otherwise ignored.
	OOMScoreAdj *int
}

// Unit is what is wanted of one component: the thing to run, when, and how it is probed, restarted and ended.
// Every function must return soon after its context is done; the group waits for it.
type Unit struct {
	// Name is unique in the group.
	Name string
	// Needs are what must be reached before each start.
	Needs []Need
	// StopAfter names further units that must have ended before this one is stopped. It does not order the start. It is for
	// what another unit uses while it stops without needing it to start.
	StopAfter []string

	// Prepare runs before each start: render files, remove stale sockets. Its context ends when the group stops, too.
	Prepare func(ctx context.Context) error
	// Process tells what to run; asked before each start, after Prepare. Exactly one of Process and Task is set.
	Process func() (Process, error)
	// Task is run in this program. It is ready when it calls ready or when Ready, if set, returns nil.
	Task func(ctx context.Context, ready func()) error
	// OneShot: ending well (status 0, nil) is Done, not a death. With no Ready it goes from Running to Done.
	OneShot bool
	// KeepChildren: only the main process belongs to the unit. What it started survives its death, its Restart and its
	// stop; whoever needs that gone removes it after Run. For a containerd, whose shims carry the pods.
	KeepChildren bool

	// Ready blocks until the unit is usable for the first time; an error is a failed start. nil: usable as soon as it
	// runs (process) or when it says so (task). See Poll.
	Ready func(ctx context.Context) error
	// StartTimeout limits the time from Starting to Ready or Done; 0 for none. Passing it is a failed start.
	StartTimeout time.Duration
	// GiveUpAfter is the number of failed starts in a row after which a unit that was never ready is Failed; 0 for never.
	// One that was ready once is restarted for ever: what it needs was there and may come back.
	GiveUpAfter int
	// Essential: when it is Failed the group stops, and Run returns its error.
	Essential bool

	// Live is asked every LivePeriod once the unit is Ready, with LiveTimeout as its deadline. LiveFailures errors in a row
	// restart the unit.
	Live         func(ctx context.Context) error
	LivePeriod   time.Duration
	LiveTimeout  time.Duration
	LiveFailures int

	// BeforeStop runs when the group stops and nobody needs the unit any more, before the signal, and not before a
	// restart. Its context ends with BeforeStopTimeout (0: StopGrace) or with the unit. Its error is logged.
	BeforeStop        func(ctx context.Context) error
	BeforeStopTimeout time.Duration
	// StopSignal is what asks the process group to end; SIGTERM if 0.
	StopSignal syscall.Signal
	// StopGrace is the time from StopSignal to SIGKILL.
	StopGrace time.Duration

	// Backoff is the delay before a restart.
	Backoff Backoff
}

// Backoff says how long a unit that failed waits before it is started again.
type Backoff struct {
	// Quick is the delay after the first death of a unit that was ready, so that one accident costs next to nothing.
	Quick time.Duration
	// Initial is the delay after the first failed start and after the second death in a row; it grows by Factor with each
	// one that follows, up to Max.
	Initial, Max time.Duration
	Factor       float64
	// ResetAfter is how long a unit must have been ready for its next death to count as the first again.
	ResetAfter time.Duration
}

// withDefaults returns u with its empty fields filled in.
func (u Unit) withDefaults() Unit {
	u.Needs = append([]Need(nil), u.Needs...)
	u.StopAfter = append([]string(nil), u.StopAfter...)
	for i := range u.Needs {
		u.Needs[i].State = or(u.Needs[i].State, Ready)
	}
	u.StopSignal = or(u.StopSignal, syscall.SIGTERM)
	u.StopGrace = or(u.StopGrace, DefaultStopGrace)
	u.BeforeStopTimeout = or(u.BeforeStopTimeout, u.StopGrace)
	u.LivePeriod = or(u.LivePeriod, DefaultLivePeriod)
	u.LiveTimeout = or(u.LiveTimeout, DefaultLiveTimeout)
	u.LiveFailures = or(u.LiveFailures, DefaultLiveFailures)
	b := &u.Backoff
	b.Quick = or(b.Quick, DefaultBackoffQuick)
	b.Initial = or(b.Initial, DefaultBackoffInitial)
	b.Max = or(b.Max, max(DefaultBackoffMax, b.Initial))
	b.Factor = or(b.Factor, DefaultBackoffFactor)
	b.ResetAfter = or(b.ResetAfter, DefaultBackoffResetAfter)
	return u
}

func or[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}
