package mountns

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// TestProbeGuarantees covers every propagation that the namespace of a node can have.
func TestProbeGuarantees(t *testing.T) {
	for _, tc := range []struct {
		name, host string
		flags      []uintptr // set on all mounts of a copy of the host's namespace, in this order
		want       Guarantees
		reasons    int
	}{
		{"slave-shared", sharedHost, []uintptr{unix.MS_SLAVE, unix.MS_SHARED}, Guarantees{true, true, false}, 0},
		{"slave-only", sharedHost, []uintptr{unix.MS_SLAVE}, Guarantees{true, false, false}, 1},
		{"private-host", privateHost, []uintptr{unix.MS_SLAVE, unix.MS_SHARED}, Guarantees{false, true, false}, 0},
		{"private", sharedHost, []uintptr{unix.MS_PRIVATE}, Guarantees{false, false, false}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onHost(t, tc.host, func(t *testing.T, _ *Store) {
				dir := os.Getenv(envHost)
				var got Guarantees
				var reasons []string
				th, err := startThread(func() error { return unix.Unshare(unix.CLONE_NEWNS) })
				assert.NilError(t, err)
				defer th.stop()
				assert.NilError(t, th.do(func() error {
					for _, flag := range tc.flags {
						if err := unix.Mount("none", "/", "", unix.MS_REC|flag, ""); err != nil {
							return err
						}
					}
					got, reasons, err = ProbeGuarantees(dir)
					return err
				}))
				equal(t, got, tc.want, "guarantees")
				assert.Check(t, is.Len(reasons, tc.reasons))
				for _, r := range reasons {
					assert.Check(t, is.Contains(r, "2: "))
				}
				left, err := filepath.Glob(filepath.Join(dir, "mountns-probe-*"))
				assert.NilError(t, err)
				assert.Check(t, is.Len(left, 0))
			})
		})
	}
}
