package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// toolchain describes the tools of the host. Its fields are part of the inputs that
// decide whether a target is up to date.
type toolchain struct {
	goCommand string // an absolute path, and therefore not part of these inputs

	GOVERSION, GOOS, GOARCH, GOAMD64, GOARM64, GOEXPERIMENT string
	GOHOSTOS, GOHOSTARCH                                    string
	CC                                                      string
	CGO_CFLAGS, CGO_LDFLAGS                                 string
}

func detectToolchain() (toolchain, error) {
	var t toolchain
	path, err := exec.LookPath("go")
	if err != nil {
		return t, hinted(err, "install Go")
	}
	if path, err = filepath.Abs(path); err != nil {
		return t, err
	}
	out, err := exec.Command(path, "env", "-json",
		"GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOHOSTOS", "GOHOSTARCH",
		"CC", "CGO_CFLAGS", "CGO_LDFLAGS").Output()
	if err != nil {
		return t, fmt.Errorf("go env: %w", withStderr(err))
	}
	if err := json.Unmarshal(out, &t); err != nil {
		return t, fmt.Errorf("go env: %w", err)
	}
	t.goCommand = path
	if t.GOOS != "linux" {
		return t, fmt.Errorf("GOOS is %s, but a node runs on linux only", t.GOOS)
	}
	return t, nil
}

// native reports whether the built programs can run on this host.
func (t toolchain) native() bool { return t.GOOS == t.GOHOSTOS && t.GOARCH == t.GOHOSTARCH }

// cVersions identifies the C compiler and library with which a target is linked.
// It skips tools that are not installed; checkTools reports them.
func (t toolchain) cVersions(need toolset) string {
	var b strings.Builder
	if cc := strings.Fields(t.CC); need.c && len(cc) > 0 {
		out, _ := exec.Command(cc[0], append(cc[1:], "--version")...).Output()
		first, _, _ := strings.Cut(string(out), "\n")
		b.WriteString(t.CC + "\n" + t.CGO_CFLAGS + "\n" + t.CGO_LDFLAGS + "\n" + first + "\n")
	}
	if need.libseccomp {
		out, _ := exec.Command("pkg-config", "--modversion", "libseccomp").Output()
		b.Write(out)
	}
	return b.String()
}

// checkTools returns one error with all missing tools, before the targets that do
// not need them are built for minutes.
func (t toolchain) checkTools(need toolset) error {
	var missing, packages []string
	if cc := strings.Fields(t.CC); need.c || need.libseccomp {
		if len(cc) == 0 {
			cc = []string{"gcc"}
		}
		if _, err := exec.LookPath(cc[0]); err != nil {
			missing, packages = append(missing, "the C compiler "+cc[0]), append(packages, "gcc", "libc6-dev")
		} else if !t.hasStaticLibrary("libc.a") {
			missing, packages = append(missing, "the static C library"), append(packages, "libc6-dev")
		}
	}
	if need.libseccomp {
		if _, err := exec.LookPath("pkg-config"); err != nil {
			missing, packages = append(missing, "the program pkg-config"), append(packages, "pkg-config")
		}
		if !t.hasStaticLibrary("libseccomp.a") {
			missing, packages = append(missing, "the static library libseccomp"), append(packages, "libseccomp-dev")
		}
	}
	if missing == nil {
		return nil
	}
	return hinted(errors.New("missing: "+strings.Join(missing, ", ")),
		"apt-get install "+strings.Join(packages, " "))
}

// hasStaticLibrary reports whether the compiler finds the static library in its
// search path.
func (t toolchain) hasStaticLibrary(name string) bool {
	cc := strings.Fields(t.CC)
	if len(cc) == 0 {
		return false
	}
	if _, err := exec.LookPath(cc[0]); err != nil {
		return true // the missing compiler is reported already
	}
	out, err := exec.Command(cc[0], append(cc[1:], "-print-file-name="+name)...).Output()
	if err != nil {
		return false
	}
	// The compiler prints the bare name if it does not find the file.
	file := strings.TrimSpace(string(out))
	if !filepath.IsAbs(file) {
		return false
	}
	_, err = os.Stat(file)
	return err == nil
}

// moduleVersion returns the version of a module that the go.mod text requires.
func moduleVersion(gomod, module string) (string, error) {
	for line := range strings.Lines(gomod) {
		line, _, _ = strings.Cut(line, "//")
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) == 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("go.mod does not require %s", module)
}

func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}
