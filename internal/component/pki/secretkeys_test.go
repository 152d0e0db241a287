package pki

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
)

func TestSecretKeys(t *testing.T) {
	t.Parallel()
	const head = "kind: EncryptionConfiguration\nresources:\n- resources: [configmaps]\n  providers: [{identity: {}}]\n"
	const more = `- resources: [secrets]
  providers:
  - secretbox: {keys: [{name: key2, secret: c2Vjb25k}, {name: key1, secret: Zmlyc3Q=}]}
  - kms: {name: vault, endpoint: unix:///kms.sock}
  - identity: {}
`
	keys, err := SecretKeys([]byte(head + more))
	assert.NilError(t, err)
	assert.DeepEqual(t, keys, []string{
		"secretbox key2 (sha256:d4b961cf700e)", "secretbox key1 (sha256:32da5526c763)", "kms vault", "identity",
	})
	keys, err = SecretKeys([]byte(head))
	assert.NilError(t, err)
	assert.DeepEqual(t, keys, []string{"identity"})
	for _, text := range []string{"", "{", "kind: Pod"} {
		_, err := SecretKeys([]byte(text))
		assert.Assert(t, err != nil, text)
	}
}

// TestSecretKeysOfTheNode checks that the description of the node's own key does not contain the key.
func TestSecretKeysOfTheNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := Ensure(dir, Spec{}, time.Now())
	assert.NilError(t, err)
	data, err := os.ReadFile(filepath.Join(dir, encryption))
	assert.NilError(t, err)
	keys, err := SecretKeys(data)
	assert.NilError(t, err)
	assert.Equal(t, len(keys), 2, keys)
	assert.Assert(t, strings.HasPrefix(keys[0], "secretbox key1 (sha256:"), keys)
	assert.Equal(t, keys[1], "identity")
}
