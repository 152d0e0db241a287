package bugreport

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"io/fs"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
)

// storedSecrets returns the secrets in files of the account and of the node, and in the environment, so that they can be removed from all
// parts. The result is not in the archive. It ignores files that it cannot read, because their content cannot be in the archive either.
func storedSecrets(_ context.Context, in *Input) ([]file, error) {
	var found secretSet
	for _, path := range filesWithSecrets(in) {
		if text, err := readHead(path, maxStateFile); err == nil {
			found.addText(text)
		}
	}
	for _, kv := range in.Env {
		found.addNamed(strings.Cut(kv, "="))
	}
	return found.files(), nil
}

// clusterSecrets returns the secrets in objects of the cluster, if its API server responds.
func clusterSecrets(ctx context.Context, in *Input) ([]file, error) {
	c, err := client(in)
	if err != nil || c == nil {
		return nil, nil // the part cluster reports the error
	}
	defer c.Close()
	var found secretSet
	found.addObjects(ctx, c)
	return found.files(), nil
}

// filesWithSecrets returns the files of the node and of the account that may have keys, tokens or passwords.
func filesWithSecrets(in *Input) []string {
	paths := []string{in.Data.AdminKubeconfig()}
	kubernetes := filepath.Dir(in.Data.PKI())
	for _, dir := range []string{kubernetes, in.Data.KubeletPKI(), in.cfg().Containerd.RegistryConfigDir} {
		if dir == "" {
			continue
		}
		_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() && !slices.Contains([]string{".crt", ".pub"}, filepath.Ext(path)) {
				paths = append(paths, path)
			}
			return nil // unreadable directories are skipped
		})
	}
	env := func(key string) string {
		for _, kv := range in.Env {
			if value, ok := strings.CutPrefix(kv, key+"="); ok {
				return value
			}
		}
		return ""
	}
	// Credentials for registries, where docker, podman and others store them.
	for _, p := range [][]string{
		{env("DOCKER_CONFIG"), "config.json"}, {in.Home, ".docker", "config.json"}, {in.Home, ".config", "containers", "auth.json"},
		{env("XDG_RUNTIME_DIR"), "containers", "auth.json"}, {env("REGISTRY_AUTH_FILE")},
	} {
		if p[0] != "" {
			paths = append(paths, filepath.Join(p...))
		}
	}
	return append(paths, in.cfg().Join.BootstrapKubeconfig, in.cfg().Join.Kubeconfig)
}

// secretSet collects secrets.
type secretSet struct{ all []string }

func (s *secretSet) files() []file {
	files := make([]file, len(s.all))
	for i, text := range s.all {
		files[i].text = text
	}
	return files
}

func (s *secretSet) add(secret string) {
	s.all = append(s.all, secret)
	if plain, err := base64.StdEncoding.DecodeString(secret); err == nil {
		s.all = append(s.all, string(plain))
		if _, password, ok := strings.Cut(string(plain), ":"); ok { // the credentials of a registry
			s.all = append(s.all, password)
		}
	}
	for line := range strings.Lines(secret) { // logs have single lines
		// The first and the last line of a key are not secret, and are needed to recognize other keys.
		if line = strings.TrimSpace(line); len(line) >= minLine && line != secret && !strings.HasPrefix(line, "-----") {
			s.all = append(s.all, line)
		}
	}
}

// minLine is the minimum length of a line that is treated as a secret of its own.
const minLine = 12

// announces matches names of values that are secrets.
var announces = regexp.MustCompile(`(?i)pass|secret|token|credential|auth|cookie|(?:api|access|private|client|signing|encryption|account)[-_.]?key|key-data|^key$`)

// addNamed adds a value whose name announces a secret, and the password of a URL. ok is false if there is no value.
func (s *secretSet) addNamed(name, value string, ok bool) {
	if ok && announces.MatchString(name) && !strings.HasPrefix(value, "/") {
		s.add(value)
	}
	if u, err := url.Parse(value); err == nil && u.User != nil {
		if password, ok := u.User.Password(); ok {
			s.add(password)
		}
	}
}

// tomlValues are the values of a TOML file whose name announces a secret, such as the headers of a registry.
var tomlValues = regexp.MustCompile(`(?m)^\s*["']?([\w.-]+)["']?\s*=\s*\[?\s*["']([^"']+)["']`)

// addText adds the secrets in a file: PEM keys, and values of YAML, JSON or TOML whose names announce a secret.
func (s *secretSet) addText(text string) {
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if strings.Contains(block.Type, "PRIVATE KEY") {
			s.add(string(block.Bytes))
			s.add(string(pem.EncodeToMemory(block)))
		}
	}
	var v any
	if yaml.Unmarshal([]byte(text), &v) == nil {
		s.addValue("", v)
	}
	for _, m := range tomlValues.FindAllStringSubmatch(text, -1) {
		s.addNamed(m[1], m[2], true)
	}
}

// addValue adds the secrets in a decoded value. name is the nearest name above it.
func (s *secretSet) addValue(name string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			s.addValue(key, value)
		}
	case []any:
		for _, value := range v {
			s.addValue(name, value)
		}
	case string:
		s.addNamed(name, v, true)
		if plain, err := base64.StdEncoding.DecodeString(v); err == nil && strings.Contains(string(plain), "PRIVATE KEY") {
			s.addText(string(plain))
		}
	}
}

// addObjects adds the values of the cluster's Secrets, and variables of pods whose name announces a secret. A worker may not read Secrets.
func (s *secretSet) addObjects(ctx context.Context, c *kubeapi.Client) {
	secrets, _ := c.ListSecrets(ctx) // what cannot be read is not in the archive
	for _, secret := range secrets {
		for key, value := range secret.Data {
			if !slices.Contains(publicKeys, key) && len(value) <= maxSecretValue {
				s.add(string(value))
			}
		}
	}
	pods, _ := c.ListPods(ctx)
	for i := range pods {
		spec := &pods[i].Spec
		for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
			for _, e := range container.Env {
				s.addNamed(e.Name, e.Value, true)
			}
		}
	}
}

// maxSecretValue is the maximum size of a value of a Secret that is looked for, in bytes. Larger ones are data such as releases of Helm.
const maxSecretValue = 16 << 10

// publicKeys are keys of Secrets whose values are not secret.
var publicKeys = []string{corev1.ServiceAccountRootCAKey, corev1.ServiceAccountNamespaceKey, corev1.TLSCertKey, "token-id", "expiration", "description", "auth-extra-groups",
	"usage-bootstrap-authentication", "usage-bootstrap-signing"}
