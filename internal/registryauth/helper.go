package registryauth

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/docker-credential-helpers/client"
	"github.com/docker/docker-credential-helpers/credentials"
)

// helperTimeout is how long a credential helper may take. The kubelet waits one minute for its plugin.
const helperTimeout = 40 * time.Second

// tokenUser is the user name with which helpers mark a token.
const tokenUser = "<token>"

// askHelper runs the credential helper that a file names for a registry. It returns nil if there is no helper, or if the helper has no
// login.
func askHelper(ctx context.Context, file *configfile.ConfigFile, registry string) (*Login, error) {
	name, servers := helperFor(file, registry), []string{registry}
	if registry == dockerHub {
		servers = []string{hubKey, registry}
	}
	if name == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	for _, server := range servers {
		found, err := client.Get(func(args ...string) client.Program {
			return &program{ctx: ctx, path: "docker-credential-" + name, args: args}
		}, server)
		switch {
		case credentials.IsErrCredentialsNotFound(err):
			continue
		case ctx.Err() != nil:
			return nil, fmt.Errorf("the credential helper %s did not answer within %s", name, helperTimeout)
		case err != nil:
			return nil, fmt.Errorf("credential helper %s: %w", name, err)
		case found.Username == tokenUser || found.Username == "" || found.Secret == "":
			return nil, errToken
		}
		return &Login{Username: found.Username, Password: found.Secret}, nil
	}
	return nil, nil
}

// helperFor returns the name of the credential helper for a registry, or "".
func helperFor(file *configfile.ConfigFile, registry string) string {
	for key, name := range file.CredentialHelpers {
		if serverName(key) == registry {
			return name
		}
	}
	return file.CredentialsStore
}

// program is a run of a credential helper that ends with its context. It implements client.Program.
type program struct {
	ctx   context.Context //nolint:containedctx // client.Program has no other way to pass it
	path  string
	args  []string
	stdin io.Reader
}

// Input implements client.Program.
func (p *program) Input(in io.Reader) { p.stdin = in }

// Output implements client.Program. Helpers print their errors to standard output.
func (p *program) Output() ([]byte, error) {
	cmd := exec.CommandContext(p.ctx, p.path, p.args...)
	cmd.Stdin = p.stdin
	cmd.WaitDelay = time.Second // a child of the helper may keep its output open
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	return out.Bytes(), err
}
