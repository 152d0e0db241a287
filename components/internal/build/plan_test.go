package main

import (
	"path"
	"slices"
	"strings"
	"testing"
)

func names(targets []target) []string {
	var out []string
	for _, t := range targets {
		out = append(out, t.name)
	}
	return out
}

func TestPlanIsSound(t *testing.T) {
	all := plan()
	outputs, called := map[string]bool{}, map[string]bool{}
	for _, x := range all {
		if outputs[x.output] || x.output == "" {
			t.Errorf("%s: output %q is empty or taken", x.name, x.output)
		}
		outputs[x.output] = true
		for _, p := range x.programs {
			if p = path.Join(x.side, p); called[p] {
				t.Errorf("%s: program %s is in the manifest twice", x.name, p)
			}
			called[p] = true
		}
		if (x.upstream == "") == (x.version == "") {
			t.Errorf("%s: needs either an upstream or a version", x.name)
		}
		for _, need := range x.needs {
			if _, ok := find(all, need); !ok {
				t.Errorf("%s: needs the unknown %s", x.name, need)
			}
		}
	}
}

func TestChoose(t *testing.T) {
	all := plan()
	for _, test := range []struct {
		ask  []string
		want []string
	}{
		{[]string{"kubelet"}, []string{"kubernetes"}},
		{[]string{"kubernetes"}, []string{"kubernetes"}},
		{[]string{"kubernetes-1.36"}, []string{"kubernetes-1.36"}},
		{[]string{"flanneld"}, []string{"flannel"}},
		{[]string{"cri-tools"}, []string{"crictl"}},
		{[]string{"cni"}, []string{"cni/bridge", "cni/loopback", "cni/host-local", "cni/firewall", "cni/portmap"}},
		{[]string{"image-pause"}, []string{"pause", "image-pause"}},
		{[]string{"ctr", "etcd", "ctr"}, []string{"etcd", "ctr"}},
	} {
		got, err := choose(all, test.ask)
		if err != nil || !slices.Equal(names(got), test.want) {
			t.Errorf("choose(%q) = %q, %v, want %q", test.ask, names(got), err, test.want)
		}
	}

	got, err := choose(all, nil)
	if err != nil || len(got) != len(all)-2 || slices.Contains(names(got), "crictl") || slices.Contains(names(got), "kubernetes-1.36") {
		t.Errorf("choose() = %q, %v, want all but crictl and kubernetes-1.36", names(got), err)
	}
	if _, err := choose(all, []string{"etcd", "nonsense"}); err == nil || !strings.Contains(err.Error(), `"nonsense"`) {
		t.Errorf("choose(nonsense): %v", err)
	}
}

func TestExpand(t *testing.T) {
	for _, test := range []struct{ in, version, want string }{
		{"a=v{version}", "v1.37.2", "a=v1.37.2"},
		{"{major}+{minor}", "v1.37.2", "1+37"},
		{"x:{version}", "3.10.2", "x:3.10.2"},
		{"plain", "", "plain"},
	} {
		if got := expand(test.in, test.version); got != test.want {
			t.Errorf("expand(%q, %q) = %q, want %q", test.in, test.version, got, test.want)
		}
	}
}

func TestModuleVersion(t *testing.T) {
	const gomod = "module m\n\nrequire example.org/one v1.0.0\n\nrequire (\n\texample.org/two v2.3.4 // indirect\n\texample.org/two/v3 v3.0.0\n)\n" +
		"\nreplace example.org/four => example.org/four v4.0.0\n"
	for module, want := range map[string]string{
		"example.org/one": "v1.0.0", "example.org/two": "v2.3.4", "example.org/two/v3": "v3.0.0", "example.org/four": "", "example.org": "",
	} {
		got, err := moduleVersion(gomod, module)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("moduleVersion(%s) = %q, %v, want %q", module, got, err, want)
		}
	}
}
