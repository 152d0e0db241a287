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

// toolchain is what the host contributes to a build. Its fields are part of what
// decides whether a target is up to date.
type toolchain struct {
	goCommand string // an absolute path, and so not part of the decision

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

// native says whether the programs that are built can run here.
func (t toolchain) native() bool { return t.GOOS == t.GOHOSTOS && t.GOARCH == t.GOHOSTARCH }

// cVersions identifies the C compiler and library that a target is linked with.
// What is not installed adds nothing; checkTools reports it.
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

// checkTools reports everything that is missing at once, before minutes are spent
// on the targets that do not need it.
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

// hasStaticLibrary asks the compiler, which alone knows where it looks.
func (t toolchain) hasStaticLibrary(name string) bool {
	cc := strings.Fields(t.CC)
	if len(cc) == 0 {
		return false
	}
	if _, err := exec.LookPath(cc[0]); err != nil {
		return true // said already, and it could not be asked
	}
	out, err := exec.Command(cc[0], append(cc[1:], "-print-file-name="+name)...).Output()
	if err != nil {
		return false
	}
	// The compiler answers with the bare name when it has not found the file.
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
	return "", fmt.Errorf("go.mod requires no version of %s", module)
}

func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}
