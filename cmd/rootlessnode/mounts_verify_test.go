package main

import (
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/internal/mountverify"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
)

func TestRenderVerdict(t *testing.T) {
	t.Parallel()
	v := &mountverify.Verdict{
		Guarantees: mountns.Guarantees{Inside: true}, Reasons: []string{"1: the host's mount of / is private"}, Notes: []string{"a note"},
	}
	for _, mount := range mountverify.Parties() {
		row := mountverify.Row{Mount: mount, SeeIt: map[string]mountverify.Cell{}}
		for _, by := range mountverify.Parties() {
			row.SeeIt[by] = mountverify.Unseen
		}
		row.SeeIt[mount] = mountverify.Own
		v.Rows = append(v.Rows, row)
	}
	golden.Assert(t, renderVerdict(v), "mounts-verify.txt")
}

func TestGuaranteeError(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		g       mountns.Guarantees
		visible bool
		leaks   []string
		want    string
	}{
		{mountns.Guarantees{HostToInside: true, Inside: true}, false, nil, ""},
		{mountns.Guarantees{HostToInside: true, Inside: true, InsideToHost: true}, true, nil, ""},
		{mountns.Guarantees{HostToInside: true, Inside: true}, true, nil, "mount guarantees not met: 3"},
		{mountns.Guarantees{}, true, nil, "mount guarantees not met: 1, 2, 3"},
		{mountns.Guarantees{HostToInside: true, Inside: true}, false, []string{"a leak"}, "a leak"},
	} {
		err := guaranteeError(&mountverify.Verdict{Guarantees: tc.g, Leaks: tc.leaks}, verifyFlags{hostVisible: tc.visible})
		if tc.want == "" {
			assert.NilError(t, err)
			continue
		}
		assert.Error(t, err, tc.want)
		assert.Equal(t, errdefs.ExitCode(err), errdefs.ExitComponent)
	}
}

func TestVerifyRequiresAnImage(t *testing.T) {
	t.Parallel()
	a := &app{uid: 1, inUserNS: func() bool { return false }}
	_, err := verifyOptions(a, &verifyFlags{kubeconfig: "x"})
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.Assert(t, strings.Contains(errdefs.ReportOf(err).Hints[0], "--image"))
	a.uid = 0
	_, err = verifyOptions(a, &verifyFlags{})
	assert.ErrorIs(t, err, errdefs.ErrConfig)
}
