package main

import (
	"fmt"
	"path"
	"strings"
)

// target is one output file of the build.
type target struct {
	// name is the name of the target for users.
	name string
	// module is the directory below components/ with the sources of the target.
	module string
	// modFile is the file in module that pins the versions. Its checksums are in the
	// file with the ending .sum. Default: go.mod.
	modFile string
	// side is the directory below bin for a target that is built side by side with
	// another version of its programs. It has a manifest of its own.
	side string
	// upstream is the module whose required version is the target's version. A
	// target without an upstream has version instead.
	upstream string
	version  string
	// output is relative to the output directory.
	output string
	// image is the full name of the image if the output is an image archive.
	image string
	// programs are the names of the output in the manifest. For each name that is
	// not the output's file name, the build creates a link to it.
	programs []string
	// modules are the modules of programs whose version is not the target's, by program.
	modules map[string]string
	// needs are the targets that must be built first.
	needs []string
	// group contains targets that have packages in common. Only one target of a
	// group is built at a time, because otherwise these packages would be compiled
	// twice. Default: module.
	group string
	// onRequest is set if the target is built only if it is named.
	onRequest bool
	// maxSize is the maximum size of the output in bytes. 0: no limit.
	maxSize int64
	// recipe returns the command that builds the target.
	recipe recipe
	// check is run on the output. It detects a version that was not linked in.
	check *check
}

// check is a run of the new program, whose output must contain all of wants.
// "{version}" stands for the version, without its leading v.
type check struct {
	args  []string
	wants []string
}

// Directories in the output directory: bin for programs, images for image
// archives, and private for files that are only needed during the build.
const (
	bin     = "libexec/rootlessnode"
	images  = "share/rootlessnode/images"
	private = ".stamps/parts"
)

// plan returns the targets. The large one is first, so that the others are built
// at the same time.
func plan() []target {
	const (
		k8sVersion        = "k8s.io/component-base/version"
		containerdPackage = "github.com/containerd/containerd/v2"
		pluginsPackage    = "github.com/containernetworking/plugins"
		pauseVersion      = "3.10.2"
	)
	kubernetes := target{
		name: "kubernetes", module: "kubernetes", upstream: "k8s.io/kubernetes",
		programs: []string{"kubelet", "kube-proxy", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "metrics-server"},
		modules:  map[string]string{"metrics-server": "sigs.k8s.io/metrics-server"},
		recipe: goProgram{
			variables: []string{
				k8sVersion + ".gitVersion=v{version}", k8sVersion + ".gitMajor={major}", k8sVersion + ".gitMinor={minor}",
				k8sVersion + ".gitTreeState=clean", k8sVersion + ".gitCommit=",
			},
		},
		check: &check{args: []string{"kubelet", "--version"}, wants: []string{"Kubernetes v{version}"}},
	}
	targets := []target{
		kubernetes,
		olderKubernetes(kubernetes, "1.36"),
		{
			name: "pause", module: "pause", version: pauseVersion, output: private + "/pause",
			recipe: cProgram{source: "pause.c", defines: []string{`PAUSE_VERSION="{version}"`}},
			check:  &check{args: []string{"--version"}, wants: []string{"pause {version}"}},
			// Every Pod has one, so it must be small.
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
			name: "storage-provisioner", module: "storage-provisioner", upstream: "sigs.k8s.io/sig-storage-lib-external-provisioner/v13",
			group:  "client-go",
			recipe: goProgram{variables: []string{"main.version=v{version}"}},
			check:  &check{args: []string{"--version"}, wants: []string{"storage-provisioner v{version}"}},
		},
		{
			name: "local-registry", module: "registry", upstream: "github.com/distribution/distribution/v3",
			recipe: goProgram{variables: []string{"main.version=v{version}"}},
			check:  &check{args: []string{"--version"}, wants: []string{"local-registry v{version}"}},
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
			// As in upstream: the shim uses only ttrpc, and each Pod has one.
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

// pins returns the file that pins the versions of t.
func (t target) pins() string {
	if t.modFile == "" {
		return "go.mod"
	}
	return t.modFile
}

// olderKubernetes returns the target of an older minor version of t, for nodes whose
// data is of that version. It is pinned by go-MINOR.mod and built only on request.
func olderKubernetes(t target, minor string) target {
	t.name += "-" + minor
	t.modFile, t.side, t.onRequest = "go-"+minor+".mod", t.name, true
	t.output = bin + "/" + t.side + "/" + t.module
	recipe := t.recipe.(goProgram)
	recipe.modFile = t.modFile
	t.recipe = recipe
	return t
}

// expand replaces the version placeholders in s. version has a leading v.
func expand(s, version string) string {
	version = strings.TrimPrefix(version, "v")
	parts := strings.SplitN(version+"..", ".", 3)
	return strings.NewReplacer("{version}", version, "{major}", parts[0], "{minor}", parts[1]).Replace(s)
}

// choose returns the targets to build, each after its needs. names are names of
// targets, modules or programs. Without names it returns all targets that are not
// built only on request.
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
			return nil, fmt.Errorf("unknown name %q; known names: %s", name, strings.Join(knownNames(all), " "))
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
				return fmt.Errorf("target %s needs unknown target %s", t.name, need)
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
	if t.name == name || t.side != "" {
		return t.name == name
	}
	if t.module == name {
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
			if t.answersTo(name) && !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	return names
}
