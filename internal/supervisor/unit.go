package supervisor

import (
	"context"
	"syscall"
	"time"
)

// Defaults for zero fields of Unit, Backoff and Options.
const (
	DefaultStopGrace = 10 * time.Second
	// The values of kubeadm's liveness probes: on a busy machine an answer can take long, and a restart takes longer.
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
	// Path is the absolute path of the executable.
	Path string
	// Args is the complete argv, including argv[0]. nil means only Path.
	Args []string
	// Env is the complete environment. nil means the environment of the supervisor.
	Env []string
	// Dir is the working directory. Empty means that of the supervisor.
	Dir string
	// LogPath is the file that standard output and error are appended to, created with mode 0600. When it reaches
	// Options.LogMaxBytes it is renamed to LogPath.1, both at the start of a process and while it runs. Empty means no
	// file. If the file cannot be written (for example on a full disk), lines are lost but the process continues.
	LogPath string
	// CgroupDir is a cgroup v2 directory that only this unit uses. The process is created in it (CLONE_INTO_CGROUP, see
	// clone(2); Linux 5.7). When the process has ended, all processes left in it and below are killed. It must exist, and
	// its cgroup.kill must never have been written, because a kernel bug would then kill every process created in it.
	// Empty means the cgroup of the supervisor.
	CgroupDir string
	// OOMScoreAdj is written to /proc/PID/oom_score_adj. An error (lowering needs CAP_SYS_RESOURCE on the host) is logged
	// and otherwise ignored.
	OOMScoreAdj *int
}

// Unit describes one component: what to run, when to start it, and how to probe, restart and stop it.
// Every function must return soon after its context is done, because the group waits for it.
type Unit struct {
	// Name is unique in the group.
	Name string
	// Needs must be met before each start.
	Needs []Need
	// StopAfter names further units that must have ended before this one is stopped. It does not affect the order of
	// starts. Use it for a unit that others use while they stop, but do not need to start.
	StopAfter []string

	// Prepare runs before each start, for example to render files or remove stale sockets. Its context also ends when the
	// group stops.
	Prepare func(ctx context.Context) error
	// Process returns the program to run. It is called before each start, after Prepare. Exactly one of Process and Task
	// is set.
	Process func() (Process, error)
	// Task runs in this program. It is ready when it calls ready or when Ready, if set, returns nil.
	Task func(ctx context.Context, ready func()) error
	// OneShot: a successful end (exit status 0 or a nil error) makes the unit Done and is not a failure. Without Ready it
	// goes from Running to Done.
	OneShot bool
	// KeepChildren: only the main process belongs to the unit. Its children survive its exit, Restart and stop; the caller
	// removes them after Run if necessary. Used for containerd, whose shims run the pods.
	KeepChildren bool

	// Explain returns the cause of an unexpected end of the process, from the last lines that it wrote, or nil if they do not
	// contain it. The cause and its hints become part of the reason of the unit.
	Explain func(lines []string) error

	// Ready blocks until the unit is usable for the first time. An error is a failed start. nil: a process is usable as
	// soon as it runs, a task when it calls ready. See Poll.
	Ready func(ctx context.Context) error
	// StartTimeout limits the time from Starting to Ready or Done. Exceeding it is a failed start. 0 means no limit.
	StartTimeout time.Duration
	// GiveUpAfter is the number of consecutive failed starts after which a unit that was never ready becomes Failed.
	// 0 means never. A unit that was ready once is always restarted, because what it needs may come back.
	GiveUpAfter int
	// Excuse reports whether failed starts do not count at present, because of a fault that is not the unit's and that the user
	// can fix meanwhile. nil: they always count.
	Excuse func() bool
	// Essential: when the unit becomes Failed, the group stops and Run returns its error.
	Essential bool

	// Live is called every LivePeriod once the unit is Ready, with LiveTimeout as its deadline. LiveFailures consecutive
	// errors restart the unit.
	Live         func(ctx context.Context) error
	LivePeriod   time.Duration
	LiveTimeout  time.Duration
	LiveFailures int

	// BeforeStop runs when the group stops and all units that need this one have ended, before StopSignal is sent. It does
	// not run before a restart. Its context ends after BeforeStopTimeout (0: StopGrace) or when the unit ends. Its error
	// is logged.
	BeforeStop        func(ctx context.Context) error
	BeforeStopTimeout time.Duration
	// StopSignal is sent to the process group to stop it. 0 means SIGTERM.
	StopSignal syscall.Signal
	// StopGrace is the time from StopSignal to SIGKILL.
	StopGrace time.Duration

	// Backoff is the delay before a restart.
	Backoff Backoff
}

// Backoff configures the delay before a failed unit is started again.
type Backoff struct {
	// Quick is the delay after the first failure of a unit that was ready, so that a single failure costs little time.
	Quick time.Duration
	// Initial is the delay after the first failed start and after the second consecutive failure of a ready unit. It is
	// multiplied by Factor with each further failure, up to Max.
	Initial, Max time.Duration
	Factor       float64
	// ResetAfter is how long a unit must have been ready for its next failure to count as the first again.
	ResetAfter time.Duration
}

// withDefaults returns u with defaults for its zero fields.
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
