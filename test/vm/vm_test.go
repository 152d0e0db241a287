package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gotest.tools/v3/assert"
)

func names(vs []verdict) (out []string) {
	for _, v := range vs {
		out = append(out, v.name)
	}
	return out
}

func TestSelected(t *testing.T) {
	t.Parallel()
	all, err := selected(nil)
	assert.NilError(t, err)
	assert.Equal(t, len(all), len(verdicts)-1) // without joined
	some, err := selected([]string{"joined", "prepare"})
	assert.NilError(t, err)
	assert.DeepEqual(t, names(some), []string{"prepare", "joined"})
	_, err = selected([]string{"prepare", "typo"})
	assert.ErrorContains(t, err, "no such verdict: typo")
}

func TestMissing(t *testing.T) {
	t.Parallel()
	wanted, err := selected([]string{"prepare", "pasted"})
	assert.NilError(t, err)
	assert.NilError(t, missing(wanted, "ok prepare (2 s)\nok pasted (9 s)\ndone\n"))
	for results, want := range map[string]string{
		"":                   "prepare, pasted",
		"ok prepare (2 s)\n": "pasted",
		"ok prepare (2 s)\nnot ok pasted (9 s)\ndone\n": "pasted",
		"ok prepare (2 s)\nok pasted (9 s)\n":           "did not run to its end",
	} {
		assert.ErrorContains(t, missing(wanted, results), want)
	}
}

func TestHints(t *testing.T) {
	t.Parallel()
	const output = `ok    kernel 6.1
warn  cgroup lacks cpu
  mkdir -p /etc/x
  systemctl daemon-reload
ok    newuidmap
hint:
  echo more
`
	assert.Equal(t, hints(output), "  mkdir -p /etc/x\n  systemctl daemon-reload\n  echo more\n")
}

func TestSteps(t *testing.T) {
	t.Parallel()
	out, err := (&guest{log: os.Stderr}).run(t.Context(), time.Minute, "bash", "-c", steps("echo last", "echo first", "false", "echo never"))
	assert.ErrorContains(t, err, "exit status 1")
	assert.Assert(t, strings.Contains(out, "\nfirst\n") && strings.Contains(out, "exit code 1: false\n") && strings.HasSuffix(out, "\nlast\n"), out)
	assert.Assert(t, !strings.Contains(out, "\nnever\n"), out)
}

// TestWatch checks that a machine hangs if it writes nothing for hangLimit while it has a processor, and only then.
func TestWatch(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "heartbeat")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		go func() {
			for range 10 {
				assert.Check(t, appendTo(file, "alive\n"))
				time.Sleep(hangLimit - heartbeatEvery)
			}
		}()
		assert.Assert(t, watch(ctx, file, func() time.Duration { return 0 }))
		assert.Assert(t, time.Since(began) > 10*(hangLimit-heartbeatEvery))
		began = time.Now()
		assert.Assert(t, watch(ctx, file, func() time.Duration { return time.Second }))
		assert.Assert(t, time.Since(began) >= 2*hangLimit)
		cancel()
		assert.Assert(t, !watch(ctx, file, func() time.Duration { return 0 }))
	})
}

func TestStarved(t *testing.T) {
	t.Parallel()
	waited := starved(os.Getpid())
	assert.Assert(t, waited() > 0)
	assert.Assert(t, waited() < time.Hour)
}
