package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const tokenFlag = "--token"

const (
	// secretEnv is the annotation of a flag whose value is a secret. Its value is the environment variable that the command reads
	// as well.
	secretEnv = "secret-env"
	// runsSelf is the annotation of a command whose arguments are a command line of this program, unless the flag that it names
	// is given.
	runsSelf = "runs-self"
)

// secretFlag adds a flag for a secret that the command also reads from an environment variable. hideSecrets hides its value.
func secretFlag(cmd *cobra.Command, value *string, name, env, usage string) {
	cmd.Flags().StringVar(value, name, "", usage+" (or "+env+")")
	_ = cmd.Flags().SetAnnotation(name, secretEnv, []string{env}) // the flag is there
}

// hideSecrets moves the values of flags with secretEnv from the command line, which all accounts of the host can read
// (proc_pid_cmdline(5)), to the environment, which only its own account can read (proc_pid_environ(5)). It returns its
// arguments and false if there is nothing to hide. It also changes nothing if the command will fail anyway: the command line is
// invalid, or the environment already has the secret.
func hideSecrets(root *cobra.Command, argv, env []string) ([]string, []string, bool) {
	cmd, args, err := root.Traverse(argv[1:])
	if err != nil || cmd.ParseFlags(args) != nil {
		return argv, env, false
	}
	kept := slices.Clone(argv[:len(argv)-len(args)])
	if unless := cmd.Annotations[runsSelf]; unless != "" {
		inner := cmd.Flags().Args()
		if cmd.Flags().Changed(unless) {
			return argv, env, false
		}
		kept = append(kept, args[:len(args)-len(inner)]...)
		hidden, with, ok := hideSecrets(root, append(argv[:1:1], inner...), env)
		return append(kept, hidden[1:]...), with, ok
	}
	with := slices.Clone(env)
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		key, secret := f.Annotations[secretEnv]
		if secret && f.Value.String() != "" && !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, key[0]+"=") }) {
			with = append(with, key[0]+"="+f.Value.String())
		}
	})
	if len(with) == len(env) {
		return argv, env, false
	}
	for len(args) > 0 {
		n, f := flagAt(cmd.Flags(), args)
		if f == nil || f.Annotations[secretEnv] == nil {
			kept = append(kept, args[:n]...)
		}
		args = args[n:]
	}
	return kept, with, true
}

// flagAt returns the flag that args begins with, or nil, and the number of its arguments: 2 if its value is the next one. The
// end of the flags and what follows is one.
func flagAt(flags *pflag.FlagSet, args []string) (int, *pflag.Flag) {
	if args[0] == "--" {
		return len(args), nil
	}
	name, long := strings.CutPrefix(args[0], "--")
	name, _, written := strings.Cut(name, "=")
	f := flags.Lookup(name)
	if short, ok := strings.CutPrefix(name, "-"); !long && ok && len(short) == 1 {
		f = flags.ShorthandLookup(short)
	} else if !long {
		f = nil
	}
	if f != nil && f.NoOptDefVal == "" && !written && len(args) > 1 {
		return 2, f
	}
	return 1, f
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
		return "", errdefs.Config("bootstrap token given by %s: use only one of them", strings.Join(from, " and ")).
			Hint("unset " + layout.EnvJoinToken + "    # " + tokenFlag + " passes its token in this variable")
	}
	if len(from) > 0 && cfg.Join.Server == "" {
		return "", errdefs.Config("%s gives a bootstrap token, but no cluster to join was given", from[0]).Hint("--join https://HOST:6443")
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
			return "", errdefs.Errorf("read bootstrap token: %s is accessible to other users (mode %04o)", path, st.Mode().Perm()).
				Hint("chmod 600 " + path)
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
