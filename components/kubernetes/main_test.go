package main

import (
	"slices"
	"testing"
)

func TestChoose(t *testing.T) {
	for _, test := range []struct {
		name    string
		args    []string
		program string
		rest    []string
	}{
		{"by link", []string{"/usr/libexec/kubelet", "--config", "x"}, "kubelet", []string{"/usr/libexec/kubelet", "--config", "x"}},
		{"by first argument", []string{"./kubernetes", "kube-proxy", "--help"}, "kube-proxy", []string{"kube-proxy", "--help"}},
		{"the link wins", []string{"kubectl", "kubelet"}, "kubectl", []string{"kubectl", "kubelet"}},
		{"only the first argument", []string{"kubernetes", "--help", "kubelet"}, "", nil},
		{"unknown", []string{"kubernetes", "kube"}, "", nil},
		{"no arguments", []string{"kubernetes"}, "", nil},
		{"nothing at all", nil, "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, rest, ok := choose(test.args, programs())
			if ok != (test.program != "") || p.name != test.program || !slices.Equal(rest, test.rest) {
				t.Errorf("choose(%q) = %q, %q, %v", test.args, p.name, rest, ok)
			}
		})
	}
}
