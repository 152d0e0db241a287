// Package suite builds Kubernetes' end-to-end suite and the programs of its images, and runs it with ginkgo against a node. It runs on the
// host, as any user. The node may belong to another account than the build.
package suite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Names of programs that Run uses.
const (
	suiteProgram  = "e2e.test"
	ginkgoProgram = "ginkgo"
	keyName       = "key"
)

// suiteModule is the directory in the source tree of the module that pins the suite.
const suiteModule = "test/conformance/suite"

// program is an executable that is built from a package of a module of the source tree.
type program struct {
	name, module, pkg string
	variables         []string // of the linker
	test              bool
}

func programs(version string) []program {
	const (
		kubernetesImages = "k8s.io/kubernetes/test/images/"
		versionPackage   = "k8s.io/component-base/version."
	)
	numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return []program{
		{
			name: suiteProgram, module: suiteModule, pkg: "k8s.io/kubernetes/test/e2e", test: true,
			// The suite compares its version with the API server's, and chooses fixtures by it.
			variables: []string{
				versionPackage + "gitVersion=" + version, versionPackage + "gitMajor=" + numbers[0], versionPackage + "gitMinor=" + numbers[1],
			},
		},
		{name: ginkgoProgram, module: suiteModule, pkg: "github.com/onsi/ginkgo/v2/ginkgo"},
		{name: "agnhost", module: suiteModule, pkg: kubernetesImages + "agnhost"},
		{name: "nonewprivs", module: suiteModule, pkg: kubernetesImages + "nonewprivs"},
		{name: "resource-consumer", module: suiteModule, pkg: kubernetesImages + "resource-consumer"},
		{name: "consume-cpu", module: suiteModule, pkg: kubernetesImages + "resource-consumer/consume-cpu"},
		{name: "regression-issue-74839", module: suiteModule, pkg: kubernetesImages + "regression-issue-74839"},
		{name: "sample-apiserver", module: suiteModule, pkg: "k8s.io/sample-apiserver"},
		{name: "coredns", module: "components/coredns", pkg: "."},
		{name: "etcd", module: "components/etcd", pkg: "go.etcd.io/etcd/server/v3"},
	}
}

// moduleFiles are files of the Kubernetes module that an image contains.
var moduleFiles = []string{"test/images/agnhost/porter/localhost.crt", "test/images/agnhost/porter/localhost.key"}

// buildFlags are the same as in the build of the components, so that packages are compiled only once.
var buildFlags = []string{"-mod=readonly", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace"}

// IsRunner reports whether Run needs the program with this name. Other programs are for images.
func IsRunner(name string) bool {
	return name == suiteProgram || name == ginkgoProgram || name == keyName
}

// Build builds the suite's programs in dir and writes its progress to progress. It does nothing if modules and Go toolchain have not changed
// since the last build. top is the root of the source tree.
func Build(ctx context.Context, top, dir string, progress io.Writer) error {
	version, err := goCommand(ctx, filepath.Join(top, suiteModule), "list", "-m", "-f", "{{.Version}}\n{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	release, source, _ := strings.Cut(strings.TrimSpace(version), "\n")
	list := programs(release)
	key, err := buildKey(ctx, top, list)
	if err != nil {
		return err
	}
	keyFile := filepath.Join(dir, keyName)
	if old, err := os.ReadFile(keyFile); err == nil && string(old) == key {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range list {
		fmt.Fprintf(progress, "building %s\n", p.name)
		if err := p.build(ctx, top, dir); err != nil {
			return err
		}
	}
	for _, name := range moduleFiles {
		data, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), data, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(keyFile, []byte(key), 0o644)
}

// Images lists the images that the suite uses.
func Images(ctx context.Context, dir string) ([]string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(dir, suiteProgram), "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("list the suite's images: %w", err)
	}
	return strings.Fields(string(out)), nil
}

func (p program) build(ctx context.Context, top, dir string) error {
	command := "build"
	if p.test {
		command = "test"
	}
	args := append([]string{command}, buildFlags...)
	if p.test {
		// vet would read all dependencies, which takes longer than the compilation.
		args = append(args, "-c", "-vet=off")
	}
	linker := "-s -w"
	for _, v := range p.variables {
		linker += " -X " + v
	}
	args = append(args, "-ldflags", linker, "-o", filepath.Join(dir, p.name), p.pkg)
	_, err := goCommand(ctx, filepath.Join(top, p.module), args...)
	return err
}

// goCommand runs the go command in a module and returns its output. It ignores a workspace, and settings for other builds.
func goCommand(ctx context.Context, module string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s in %s: %w\n%s", args[0], filepath.Base(module), err, stderr.Bytes())
	}
	return string(out), nil
}

// buildKey returns a key that changes with the inputs of the build.
func buildKey(ctx context.Context, top string, list []program) (string, error) {
	goVersion, err := goCommand(ctx, top, "version")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, goVersion, runtime.GOARCH, buildFlags, moduleFiles)
	var errs []error
	for _, p := range list {
		fmt.Fprintln(h, p)
		for _, name := range []string{"go.mod", "go.sum"} {
			data, err := os.ReadFile(filepath.Join(top, p.module, name))
			errs = append(errs, err)
			h.Write(data)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), errors.Join(errs...)
}
