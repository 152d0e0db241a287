package apiserver

import (
	"os"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

const encryptionFlag = "encryption-provider-config"

// encryptionFile returns the path on the host of the API server's EncryptionConfiguration: that of an extra argument, or the one in the
// data dir. byUser is set if it is that of an extra argument, which may exist only inside.
func encryptionFile(cfg *config.NodeConfig, data layout.Data) (path string, byUser bool) {
	path = pki.EncryptionConfig()
	for _, arg := range cfg.ControlPlane.APIServerExtraArgs {
		if value, ok := strings.CutPrefix(arg, "--"+encryptionFlag+"="); ok {
			path, byUser = value, true
		}
	}
	if onHost, ok := data.OnHost(path); ok {
		path = onHost
	}
	return path, byUser
}

// SecretKeys returns the path of the API server's EncryptionConfiguration and its keys for Secrets, see pki.SecretKeys. There are no keys,
// and there is no error, if an extra argument names a file that does not exist on the host.
func SecretKeys(cfg *config.NodeConfig, data layout.Data) (path string, keys []string, err error) {
	path, byUser := encryptionFile(cfg, data)
	text, err := os.ReadFile(path)
	if byUser && err != nil {
		return path, nil, nil
	}
	if err == nil {
		keys, err = pki.SecretKeys(text)
	}
	return path, keys, err
}
