package main

import (
	"fmt"
	"path"
	"strings"
)

// target is one file that the build makes.
type target struct {
	// name is what the user asks for and sees.
	name string
	// module is the directory below components/ that the target is made from.
	module string
	// upstream is the module whose required version is the target's version; a
	// target of our own has a version instead.
	upstream string
	version  string
	// output is relative to the output directory.
	output string
	// image is the full name of the image that the output is an archive of.
	image string
	// programs are the names under which the manifest lists the output. One that
	// is not the output's own name is also made a link to it.
	programs []string
	// needs are the targets that must be made first.
	needs []string
	// group holds targets that have packages in common. Side by side they would
	// compile those twice, so only one of a group is made at a time. It is the
	// module when empty.
	group string
	// onRequest targets are made only when named.
	onRequest bool
	// maxSize fails the build when the output is larger; 0 for no limit.
	maxSize int64
	// recipe says how to make it.
	recipe recipe
	// check is run on the output. It catches a version that was not linked in.
	check *check
}

// check is a run of the new program, whose output must contain all of wants.
// "{version}" stands for the version, without its leading v.
type check struct {
	args  []string
	wants []string
}

// bin is where the programs go, images where the image archives go, and private
// where parts go that are only needed during the build.
const (
	bin     = "libexec/rootlessnode"
	images  = "share/rootlessnode/images"
	private = ".stamps/parts"
)

// plan lists the targets. The large one comes first: the others are made beside
// it, and only what they need themselves must come before them.
func plan() []target {
	const (
		k8sVersion        = "k8s.io/component-base/version"
		containerdPackage = "github.com/containerd/containerd/v2"
		pluginsPackage    = "github.com/containernetworking/plugins"
		pauseVersion      = "3.10.2"
	)
	targets := []target{
		{
			name: "kubernetes", module: "kubernetes", upstream: "k8s.io/kubernetes",
			programs: []string{"kubelet", "kube-proxy", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler"},
			recipe: goProgram{
				variables: []string{
					k8sVersion + ".gitVersion=v{version}", k8sVersion + ".gitMajor={major}", k8sVersion + ".gitMinor={minor}",
					k8sVersion + ".gitTreeState=clean", k8sVersion + ".gitCommit=",
				},
			},
			check: &check{args: []string{"kubelet", "--version"}, wants: []string{"Kubernetes v{version}"}},
		},
		{
			name: "pause", module: "pause", version: pauseVersion, output: private + "/pause",
			recipe: cProgram{source: "pause.c", defines: []string{`PAUSE_VERSION="{version}"`}},
			check:  &check{args: []string{"--version"}, wants: []string{"pause {version}"}},
			// Every Pod has one, and its page cache is all that it costs.
			maxSize: 1 << 20,
		},
		{
			name: "coredns", module: "coredns", upstream: "github.com/coredns/coredns", output: private + "/coredns",
			group:  "client-go",
			recipe: goProgram{},
			check:  &check{args: []string{"-version"}, wants: []string{"CoreDNS-{version}"}},
		},
		{
			name: "flannel", module: "flannel", upstream: "github.com/flannel-io/flannel", output: bin + "/flanneld",
			group:  "client-go",
			recipe: goProgram{variables: []string{"github.com/flannel-io/flannel/pkg/version.Version=v{version}"}},
			check:  &check{args: []string{"--version"}, wants: []string{"v{version}"}},
		},
		{
			name: "kube-network-policies", module: "kube-network-policies", upstream: "sigs.k8s.io/kube-network-policies",
			group:  "client-go",
			recipe: goProgram{variables: []string{"main.version=v{version}"}},
			check:  &check{args: []string{"--version"}, wants: []string{"kube-network-policies v{version}"}},
		},
		{
			name: "etcd", module: "etcd", upstream: "go.etcd.io/etcd/server/v3",
			recipe: goProgram{pkg: "go.etcd.io/etcd/server/v3"},
			check:  &check{args: []string{"--version"}, wants: []string{"etcd Version: {version}"}},
		},
		{
			name: "runc", module: "runc", upstream: "github.com/opencontainers/runc",
			recipe: goProgram{pkg: "github.com/opencontainers/runc", static: true, tags: []string{"seccomp", "urfave_cli_no_docs"}},
			check:  &check{args: []string{"--version"}, wants: []string{"runc version {version}", "libseccomp: "}},
		},
		{
			name: "image-pause", module: "images", version: pauseVersion, output: images + "/pause.tar",
			image: "registry.k8s.io/pause:{version}", needs: []string{"pause"},
			recipe: imageArchive{part: "pause", user: "65535:65535"},
		},
		{
			name: "image-coredns", module: "images", upstream: "github.com/coredns/coredns", output: images + "/coredns.tar",
			image: "registry.k8s.io/coredns/coredns:v{version}", needs: []string{"coredns"},
			recipe: imageArchive{part: "coredns", user: "65532:65532"},
		},
		{
			name: "crictl", module: "cri-tools", upstream: "sigs.k8s.io/cri-tools", onRequest: true,
			recipe: goProgram{
				pkg: "sigs.k8s.io/cri-tools/cmd/crictl", variables: []string{"sigs.k8s.io/cri-tools/pkg/version.Version=v{version}"},
			},
			check: &check{args: []string{"--version"}, wants: []string{"v{version}"}},
		},
	}
	for _, program := range []string{"containerd", "ctr", "containerd-shim-runc-v2"} {
		tags := []string{"no_btrfs", "no_devmapper", "no_zfs", "no_rdt", "static_build", "urfave_cli_no_docs"}
		versionFlag := "--version"
		if program == "containerd-shim-runc-v2" {
			// As upstream: the shim speaks ttrpc only, and there is one a Pod.
			tags = append(tags, "no_grpc")
			versionFlag = "-v"
		}
		targets = append(targets, target{
			name: program, module: "containerd", upstream: containerdPackage,
			recipe: goProgram{
				pkg: containerdPackage + "/cmd/" + program, tags: tags,
				variables: []string{containerdPackage + "/version.Version=v{version}"},
			},
			check: &check{args: []string{versionFlag}, wants: []string{"v{version}"}},
		})
	}
	for _, plugin := range []string{"main/bridge", "main/loopback", "ipam/host-local", "meta/firewall", "meta/portmap"} {
		targets = append(targets, target{
			name: "cni/" + path.Base(plugin), module: "cni", upstream: pluginsPackage,
			recipe: goProgram{
				pkg:       pluginsPackage + "/plugins/" + plugin,
				variables: []string{pluginsPackage + "/pkg/utils/buildversion.BuildVersion=v{version}"},
			},
			check: &check{args: []string{"--version"}, wants: []string{"v{version}"}},
		})
	}
	for i := range targets {
		t := &targets[i]
		if t.group == "" {
			t.group = t.module
		}
		if t.output == "" {
			t.output = bin + "/" + t.name
		}
		if t.programs == nil && t.image == "" && !strings.HasPrefix(t.output, private) {
			t.programs = []string{strings.TrimPrefix(t.output, bin+"/")}
		}
	}
	return targets
}

// expand replaces the version placeholders in s; version is with its leading v.
func expand(s, version string) string {
	version = strings.TrimPrefix(version, "v")
	parts := strings.SplitN(version+"..", ".", 3)
	return strings.NewReplacer("{version}", version, "{major}", parts[0], "{minor}", parts[1]).Replace(s)
}

// choose returns the targets to make, in an order in which each comes after what
// it needs. Names are those of targets, of modules or of programs; none stands
// for every target that is not made on request only.
func choose(all []target, names []string) ([]target, error) {
	wanted := map[string]bool{}
	for _, t := range all {
		if len(names) == 0 && !t.onRequest {
			wanted[t.name] = true
		}
	}
	for _, name := range names {
		found := false
		for _, t := range all {
			if t.answersTo(name) {
				wanted[t.name], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("nothing is called %q; there is: %s", name, strings.Join(knownNames(all), " "))
		}
	}

	var chosen []target
	placed := map[string]bool{}
	var place func(t target) error
	place = func(t target) error {
		if placed[t.name] {
			return nil
		}
		placed[t.name] = true
		for _, need := range t.needs {
			n, ok := find(all, need)
			if !ok {
				return fmt.Errorf("target %s needs %s, which is none", t.name, need)
			}
			if err := place(n); err != nil {
				return err
			}
		}
		chosen = append(chosen, t)
		return nil
	}
	for _, t := range all {
		if wanted[t.name] {
			if err := place(t); err != nil {
				return nil, err
			}
		}
	}
	return chosen, nil
}

func find(all []target, name string) (target, bool) {
	for _, t := range all {
		if t.name == name {
			return t, true
		}
	}
	return target{}, false
}

func (t target) answersTo(name string) bool {
	if t.name == name || t.module == name {
		return true
	}
	for _, p := range t.programs {
		if p == name {
			return true
		}
	}
	return false
}

func knownNames(all []target) []string {
	var names []string
	seen := map[string]bool{}
	for _, t := range all {
		for _, name := range append([]string{t.module, t.name}, t.programs...) {
			if !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	return names
}
