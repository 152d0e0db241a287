package login

import "strings"

// kept are the variables of the login that the node's processes get. Components get only some of them (internal/noderole). All others
// stay outside, because they change the behaviour of programs: LD_PRELOAD, GODEBUG, GOMAXPROCS, BASH_ENV, ETCD_…, LC_….
var kept = map[string]bool{
	"HOME": true, "USER": true, "LOGNAME": true, "SHELL": true, "PATH": true, "TZ": true,
	"XDG_RUNTIME_DIR": true, "XDG_DATA_HOME": true, "XDG_CONFIG_HOME": true,
	// The child hides the sockets of these variables from pods.
	"DBUS_SESSION_BUS_ADDRESS": true, "SSH_AUTH_SOCK": true,
	// Reports whether the standard error is the journal.
	"JOURNAL_STREAM": true,
	"HTTP_PROXY":     true, "HTTPS_PROXY": true, "NO_PROXY": true, "http_proxy": true, "https_proxy": true, "no_proxy": true,
	"SSL_CERT_FILE": true, "SSL_CERT_DIR": true,
	// The account's logins at registries, and the settings of the helpers that store them (internal/registryauth).
	"DOCKER_CONFIG": true, "REGISTRY_AUTH_FILE": true, "GNUPGHOME": true, "PASSWORD_STORE_DIR": true,
	"AWS_PROFILE": true, "AWS_REGION": true, "AWS_CONFIG_FILE": true, "AWS_SHARED_CREDENTIALS_FILE": true,
	"CLOUDSDK_CONFIG": true, "GOOGLE_APPLICATION_CREDENTIALS": true, "AZURE_CONFIG_DIR": true,
	// The program that RootlessKit and the checks ask for subordinate ids.
	"GETSUBIDS": true,
}

// prefixes are those of rootlessnode's and RootlessKit's own variables.
var prefixes = []string{"ROOTLESSNODE_", "_ROOTLESSNODE_", "_ROOTLESSKIT_"}

// Locale is the locale of the node's processes. It exists everywhere, and error messages are in English, as logs are.
const Locale = "LANG=C.UTF-8"

// Environment returns the part of an environment that the node's processes get, with their locale.
func Environment(environ []string) []string {
	out := []string{Locale}
	for _, kv := range environ {
		key, _, _ := strings.Cut(kv, "=")
		if kept[key] || hasPrefix(key) {
			out = append(out, kv)
		}
	}
	return out
}

func hasPrefix(key string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(key, p) {
			return true
		}
	}
	return false
}
