package dispatch

import (
	"slices"
	"testing"
)

func TestChoose(t *testing.T) {
	names := []string{"kubelet", "kubectl", "kube-proxy"}
	for _, test := range []struct {
		name string
		args []string
		want string
		rest []string
	}{
		{"by link", []string{"/usr/libexec/kubelet", "--config", "x"}, "kubelet", []string{"/usr/libexec/kubelet", "--config", "x"}},
		{"by first argument", []string{"./kubernetes", "kube-proxy", "--help"}, "kube-proxy", []string{"kube-proxy", "--help"}},
		{"the link wins", []string{"kubectl", "kubelet"}, "kubectl", []string{"kubectl", "kubelet"}},
		{"only the first argument", []string{"kubernetes", "--help", "kubelet"}, "", nil},
		{"no prefix of a name", []string{"kubernetes", "kube"}, "", nil},
		{"no arguments", []string{"kubernetes"}, "", nil},
		{"nothing at all", nil, "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, rest, ok := Choose(test.args, names)
			if ok != (test.want != "") || got != test.want || !slices.Equal(rest, test.rest) {
				t.Errorf("Choose(%q) = %q, %q, %v", test.args, got, rest, ok)
			}
		})
	}
}
