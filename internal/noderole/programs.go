package noderole

import (
	"os"
	"path/filepath"
)

// programs are the components' programs and the environment in which they run.
type programs struct{ componentsDir, nodeName string }

// binary returns the path of a component's program.
func (p programs) binary(name string) string { return filepath.Join(p.componentsDir, name) }

// path returns the PATH in which bundled components come before the host's programs of the same name.
func (p programs) path() string {
	return p.componentsDir + string(filepath.ListSeparator) + "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

// environ returns the environment of components: the inherited variables, and a PATH with the components first.
func (p programs) environ(extra []string) []string {
	env := append(baseEnv(), "PATH="+p.path(), "NODE_NAME="+p.nodeName)
	return append(env, extra...)
}

// baseEnv returns the variables that components and exec programs inherit from the user's environment.
func baseEnv() []string {
	var env []string
	for _, k := range []string{
		"HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return env
}
