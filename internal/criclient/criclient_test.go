package criclient

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// helper writes a shell script that replaces the helper program.
func helper(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "helper")
	testutil.Script(t, path, script)
	return path
}

func TestRun(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, script, want string }{
		{"all stopped", `cat >&2; echo '{"changed":true,"waiting":["a"]}'; echo '{"warning":"w"}'; echo '{"changed":true}'`, ""},
		{"fault", `echo '{"error":"no runtime"}'; exit 1`, "stop pods: no runtime"},
		{"crash", `echo oops >&2; exit 3`, "stop pods: oops"},
		{"nonsense", `echo nonsense`, "stop pods: read reports of rootlessnode-cri: invalid character"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var got []Report
			err := Run(t.Context(), helper(t, tc.script), os.Environ(), Request{}, func(r Report) { got = append(got, r) })
			if tc.want != "" {
				assert.ErrorContains(t, err, tc.want)
				return
			}
			assert.NilError(t, err)
			assert.DeepEqual(t, got, []Report{{Changed: true, Waiting: []string{"a"}}, {Warning: "w"}, {Changed: true}})
		})
	}
	assert.ErrorContains(t, Run(t.Context(), "/nonexistent", nil, Request{}, nil), "stop pods: start rootlessnode-cri: ")
}

// TestRunEndsWithItsContext checks that a helper program that does not end is killed.
func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := Run(ctx, helper(t, `echo '{"changed":true,"waiting":["a"]}'; exec sleep 600`), os.Environ(), Request{}, func(Report) { cancel() })
	assert.ErrorIs(t, err, context.Canceled)
	assert.Assert(t, is.ErrorContains(err, "stop pods: "))
}
