package noderole

import (
	"os"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/login"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
)

// programs are the components' programs and the environment in which they run.
type programs struct {
	// dirs are the directories of the programs (preflight.ProgramDirs).
	dirs     []string
	nodeName string
	// proxies are the variables of proxyEnv.
	proxies []string
}

// binary returns the path of a component's program.
func (p programs) binary(name string) string { return preflight.Program(p.dirs, name) }

// path returns the PATH in which bundled components come before the host's programs of the same name.
func (p programs) path() string {
	return strings.Join(p.dirs, ":") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

// environ returns the environment of components.
func (p programs) environ(extra []string) []string {
	return slices.Concat(p.baseEnv(), []string{"NODE_NAME=" + p.nodeName}, extra)
}

// baseEnv returns the environment of components and exec programs: some variables of the login, see login.Environment, and a PATH with the
// components first.
func (p programs) baseEnv() []string {
	env := append([]string{login.Locale, "PATH=" + p.path()}, p.proxies...)
	for _, k := range []string{"HOME", "USER", "LOGNAME", "SHELL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return env
}
