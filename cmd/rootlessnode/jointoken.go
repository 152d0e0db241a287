package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const (
	tokenFlag = "--token"
	nameFlag  = "--name"
)

// hideToken moves the bootstrap token of `up --token TOKEN` from the command line, which all accounts of the host can read
// (proc_pid_cmdline(5)), to the environment, which only its own account can read (proc_pid_environ(5)). It returns its
// arguments and false if there is nothing to hide: other commands, such as kubectl, may have a flag of this name. It also
// changes nothing if `up` will fail anyway: the flag has no value, or the environment already has a token.
func hideToken(argv, env []string) ([]string, []string, bool) {
	at := upAt(argv)
	if at < 0 || slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, layout.EnvJoinToken+"=") }) {
		return argv, env, false
	}
	kept, token, found := slices.Clone(argv[:at+1]), "", false
	for i := at + 1; i < len(argv); i++ {
		value, written := strings.CutPrefix(argv[i], tokenFlag+"=")
		switch {
		case argv[i] == "--": // end of the flags
			kept = append(kept, argv[i:]...)
			i = len(argv)
		case written:
			token, found = value, true
		case argv[i] == tokenFlag && i+1 < len(argv):
			token, found = argv[i+1], true
			i++
		case slices.Contains(upFlagsWithValue, argv[i]) && i+1 < len(argv): // its value may look like anything
			kept = append(kept, argv[i], argv[i+1])
			i++
		default:
			kept = append(kept, argv[i])
		}
	}
	if !found || token == "" {
		return argv, env, false
	}
	return kept, append(slices.Clone(env), layout.EnvJoinToken+"="+token), true
}

// upFlagsWithValue are the flags of `up` whose value is the next argument.
var upFlagsWithValue = []string{
	nameFlag, "--config", "--set", "--components-dir", "--data-dir", "--log-level", "--join", "--token-file", "--ca-cert-hash",
	"--bootstrap-kubeconfig", "--kubeconfig", "--node-ip", "--timeout",
}

// upAt returns the index of the command up in argv, also after `host enter`, or -1 for another command.
func upAt(argv []string) int {
	at := commandAt(argv, 1, nameFlag)
	if at < 0 || argv[at] != "host" || at+1 >= len(argv) || argv[at+1] != "enter" {
		return upOrNone(argv, at)
	}
	at = commandAt(argv, at+2, nameFlag, "--user")
	if at < 0 || slices.ContainsFunc(argv[:at], func(arg string) bool { return strings.HasPrefix(arg, "--command") }) { // runs another program
		return -1
	}
	return upOrNone(argv, commandAt(argv, at, nameFlag))
}

func upOrNone(argv []string, at int) int {
	if at < 0 || argv[at] != "up" {
		return -1
	}
	return at
}

// commandAt returns the index of the first argument from start on that is neither a flag nor the value of a flag in
// withValue, or -1 if there is no such argument.
func commandAt(argv []string, start int, withValue ...string) int {
	for i := start; i < len(argv); i++ {
		switch {
		case slices.Contains(withValue, argv[i]):
			i++
		case argv[i] == "--" && i+1 < len(argv):
			return i + 1
		case !strings.HasPrefix(argv[i], "-"):
			return i
		}
	}
	return -1
}

// takeToken removes the bootstrap token from the environment, so that no child process inherits it.
func (a *app) takeToken() {
	for _, key := range []string{layout.EnvTakenToken, layout.EnvJoinToken} {
		if token := a.env(key); token != "" && a.joinToken == "" {
			a.joinToken, a.tokenTaken = strings.TrimSpace(token), key == layout.EnvTakenToken
		}
		a.unsetenv(key)
	}
}

// tokenFlags are the flags of `up` for a bootstrap token.
type tokenFlags struct{ token, file string }

// read returns the bootstrap token, or "" if none was given. It returns an error if more than one source gives a token.
func (f *tokenFlags) read(a *app, cfg *config.NodeConfig) (string, error) {
	if a.tokenTaken { // this is the second execution; the first one has read the flags
		return a.joinToken, nil
	}
	token, from := a.joinToken, []string{}
	if token != "" {
		from = append(from, layout.EnvJoinToken)
	}
	if f.token != "" {
		token, from = strings.TrimSpace(f.token), append(from, tokenFlag)
	}
	if f.file != "" {
		from = append(from, "--token-file")
	}
	if len(from) > 1 {
		return "", errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, fmt.Errorf("bootstrap token given by %s: use only one of them", strings.Join(from, " and "))),
			"unset "+layout.EnvJoinToken+"    # "+tokenFlag+" passes its token in this variable")
	}
	if len(from) > 0 && cfg.Join.Server == "" {
		return "", errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, fmt.Errorf("%s gives a bootstrap token, but no cluster to join was given", from[0])),
			"--join https://HOST:6443")
	}
	if f.file == "" {
		return token, nil
	}
	token, err := readTokenFile(f.file, a.stdin)
	return token, errdefs.Class(errdefs.ErrConfig, err)
}

// tokenLimit is the maximum size of a token file in bytes, much more than a token needs.
const tokenLimit = 4 << 10

// readTokenFile reads the token from the file at path, or from stdin if path is "-". It returns an error if other users can
// access the file.
func readTokenFile(path string, stdin io.Reader) (string, error) {
	in, from := stdin, "standard input"
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("read bootstrap token: %w", err)
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return "", fmt.Errorf("read bootstrap token: %w", err)
		}
		const others = 0o077
		if st.Mode().IsRegular() && st.Mode().Perm()&others != 0 {
			return "", errdefs.WithHint(fmt.Errorf("read bootstrap token: %s is accessible to other users (mode %04o)", path, st.Mode().Perm()), "chmod 600 "+path)
		}
		in, from = f, path
	}
	text, err := io.ReadAll(io.LimitReader(in, tokenLimit))
	if err != nil {
		return "", fmt.Errorf("read bootstrap token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("read bootstrap token: %s is empty", from)
	}
	return token, nil
}
