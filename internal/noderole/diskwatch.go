package noderole

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

const (
	// diskInterval is the interval between two checks of the file systems.
	diskInterval = 15 * time.Second
	// diskTimeout limits one check. A file system whose disk fails or whose server is away may block for ever.
	diskTimeout = 10 * time.Second
	// diskTrial is how much a check writes, in bytes.
	diskTrial = 4 << 10
	// minRuntimeDir is the least free space of the runtime dir, in bytes. Its files are small.
	minRuntimeDir = 1 << 20
)

// Reasons of a false Disk condition, and of a warning (reasonNearlyFull).
const (
	reasonReadOnly      = "ReadOnly"
	reasonFull          = "NoSpace"
	reasonQuota         = "QuotaExceeded"
	reasonNearlyFull    = "NearlyFull"
	reasonWriteFailed   = "WriteFailed"
	reasonNotResponding = "NotResponding"
)

// fileSystem is a directory whose file system the node needs, with its least free space.
type fileSystem struct {
	name, dir string
	bytes     threshold
	inodes    threshold
}

// threshold is a least free amount: a percentage of the file system, or a number.
type threshold struct {
	percent float64
	number  uint64
	text    string // the setting and its value, for people
}

// parseThreshold parses a value of kubelet.evictionHard, which is valid.
func parseThreshold(setting, value string) threshold {
	t := threshold{text: setting + " (" + value + ")"}
	if p, ok := strings.CutSuffix(value, "%"); ok {
		t.percent, _ = strconv.ParseFloat(p, 64)
	} else if q, err := resource.ParseQuantity(value); err == nil {
		t.number = uint64(max(q.Value(), 0))
	}
	return t
}

// of returns the threshold for a file system with the given total.
func (t threshold) of(total uint64) uint64 {
	return max(t.number, uint64(t.percent/100*float64(total)))
}

// usage is the result of statfs(2).
type usage struct {
	bytes, freeBytes   uint64
	inodes, freeInodes uint64 // 0 if the file system does not count them
}

// diskWatch checks the file systems of the data dir and the runtime dir by writing to them, and compares their free space with the
// thresholds at which the kubelet evicts pods.
type diskWatch struct {
	systems []fileSystem
	usage   func(dir string) (usage, error)
	try     func(dir string) error
}

func (n *nodeRole) diskWatch() diskWatch {
	e := n.cfg.Kubelet.EvictionHard
	return diskWatch{
		systems: []fileSystem{
			{"the data dir", n.data.Dir, parseThreshold("nodefs.available", e["nodefs.available"]), parseThreshold("nodefs.inodesFree", e["nodefs.inodesFree"])},
			{"the runtime dir", n.rt.Dir, threshold{number: minRuntimeDir, text: "what the node needs (1Mi)"}, threshold{}},
		},
		usage: diskUsage, try: tryWrite,
	}
}

// Run implements conditionWatch.
func (w diskWatch) Run(ctx context.Context, report conditionReporter) error {
	results := make(chan status.Condition, 1) // has room for a check that ends after Run
	for {
		go func() { results <- w.check() }()
		select {
		case <-ctx.Done():
			return nil
		case c := <-results:
			report.set(c)
		case <-time.After(diskTimeout):
			report.set(status.Condition{Reason: reasonNotResponding, Message: fmt.Sprintf(
				"the file system of %s does not respond within %s", w.systems[0].dir, diskTimeout)})
			select {
			case <-ctx.Done():
				return nil
			case c := <-results:
				report.set(c)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(diskInterval):
		}
	}
}

// check checks all file systems. A fault precedes a warning.
func (w diskWatch) check() status.Condition {
	result := status.Condition{OK: true}
	for _, fs := range w.systems {
		c := w.checkOne(fs)
		if !c.OK {
			return c
		}
		if c.Warning {
			result = c
		}
	}
	return result
}

func (w diskWatch) checkOne(fs fileSystem) status.Condition {
	what := fs.name + " " + fs.dir
	fault := func(reason, message string) status.Condition {
		return status.Condition{Reason: reason, Message: message, Steps: diskHint(fs.dir)}
	}
	if err := w.try(fs.dir); err != nil {
		return fault(writeReason(err), fmt.Sprintf("write to %s: %v", what, err))
	}
	u, err := w.usage(fs.dir)
	if err != nil {
		return fault(reasonWriteFailed, fmt.Sprintf("read the usage of %s: %v", what, err))
	}
	result := status.Condition{OK: true}
	for _, r := range []struct {
		free, total uint64
		least       threshold
		size        string
	}{{u.freeBytes, u.bytes, fs.bytes, byteText(u.bytes)}, {u.freeInodes, u.inodes, fs.inodes, fmt.Sprintf("%d inodes", u.inodes)}} {
		least := r.least.of(r.total)
		text := fmt.Sprintf("%s: %.1f %% of %s are free", what, 100*float64(r.free)/float64(r.total), r.size)
		switch {
		case r.total == 0:
		case r.free < least:
			return fault(reasonFull, text+", less than "+r.least.text)
		case r.free < 2*least:
			result = fault(reasonNearlyFull, text+", close to "+r.least.text)
			result.OK, result.Warning = true, true
		}
	}
	return result
}

func byteText(n uint64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// writeReason returns the reason for a failed write.
func writeReason(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return reasonFull
	case errors.Is(err, unix.EDQUOT):
		return reasonQuota
	case errors.Is(err, unix.EROFS):
		return reasonReadOnly
	}
	return reasonWriteFailed
}

func diskHint(dir string) errdefs.Hint {
	return errdefs.Text("df -h " + hostinfo.Quote(dir) + "; df -i " + hostinfo.Quote(dir) + "    # then free space on this file system")
}

func diskUsage(dir string) (usage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return usage{}, err
	}
	size := uint64(st.Bsize) //nolint:gosec // a block size is not negative
	return usage{bytes: st.Blocks * size, freeBytes: st.Bavail * size, inodes: st.Files, freeInodes: st.Ffree}, nil
}

// tryWrite writes to a file without a name in dir. It succeeds if the file system has no such files.
func tryWrite(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, make([]byte, diskTrial))
	if err == nil {
		err = unix.Fdatasync(fd)
	}
	return errors.Join(err, unix.Close(fd))
}
