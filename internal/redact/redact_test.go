package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

// TestKnown checks that a known secret is removed in every form.
func TestKnown(t *testing.T) {
	t.Parallel()
	const secret = "s3cr&t/ \"päss\"+word?"
	r := New(secret, "short", "")
	quoted, err := json.Marshal(secret)
	assert.NilError(t, err)
	for name, form := range map[string]string{
		"raw": secret, "query": url.QueryEscape(secret), "path": url.PathEscape(secret), "JSON": string(quoted),
		"lower escapes": strings.ReplaceAll(strings.ReplaceAll(url.QueryEscape(secret), "%2F", "%2f"), "%3F", "%3f"),
		"hex":           hex.EncodeToString([]byte(secret)),
	} {
		got := r.Text("before " + form + " after")
		assert.Assert(t, cmp.Contains(got, Mark), "%s: %s", name, got)
		assert.Assert(t, !strings.Contains(got, "word"), "%s: %s", name, got)
		assert.Assert(t, !strings.Contains(got, hex.EncodeToString([]byte("word"))), "%s: %s", name, got)
	}
	assert.Equal(t, r.Text("short stays"), "short stays")
	for _, alphabet := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding} {
		for _, before := range []string{"", "a", "ab", "abc", "user:"} {
			for _, after := range []string{"", "x", "xy", "xyz"} {
				text := alphabet.EncodeToString([]byte(before + secret + after))
				got := r.Text("data " + text + " end")
				assert.Assert(t, cmp.Contains(got, Mark), "%q %q: %s", before, after, got)
				assert.Assert(t, !strings.Contains(got, text[len(text)/3:2*len(text)/3]), "%q %q: %s", before, after, got)
			}
		}
	}
}

// secrets are texts with secrets that are recognized. The secret is the part between the brackets.
var secrets = []string{
	"Authorization: Bearer <abcdefgh12345678>",
	`{"authorization": "bearer <abcdefgh12345678>"}`,
	"curl -H 'Authorization: Basic <dXNlcjpwYXNzd29yZA==>'",
	"token <eyJhbGciOiJSUzI1NiIsImtpZCI6IiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl> in a log",
	"join with --token <abcdef.0123456789abcdef>",
	"join with --token-file - and <abcdef.0123456789abcdef> as input",
	"http_proxy=http://<user:pa55w0rd>@proxy.example:3128/",
	"HTTPS_PROXY=<user:pa55w0rd>@proxy.example:3128",
	"pull https://<user:pa55/w0rd>@registry.example/v2/",
	"password=<hunter22>",
	"password: <correct horse battery staple>",
	"  DB_PASSWORD: <hunter22>",
	`{"db_password":"<hunter22>","x":1}`,
	`msg="{\"password\":\"<hunter22>\"}"`,
	"GET /login?user=a&password=<hunter22>&x=1",
	"--db-password <hunter22> --verbose",
	"--api-key=<0123456789>",
	"client-key-data: <LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0tLS0t>",
	`"auth": "<dXNlcjpwYXNzd29yZA==>"`,
	`"identitytoken": "<0123-4567>"`,
	"[header]\n  X-Auth-Token = [\"<hunter2222>\"]",
	"-----BEGIN EC PRIVATE KEY-----\n<MHcCAQEEIA>\n-----END EC PRIVATE KEY-----",
	`"key":"-----BEGIN RSA PRIVATE KEY-----\n<MHcCAQEEIA>\n-----END RSA PRIVATE KEY-----\n"`,
	"-----BEGIN PRIVATE KEY-----\n<MHcCAQEEIA>",
	"<AKIAIOSFODNN7EXAMPLE>",
	"<ghp_0123456789abcdef0123456789abcdef0123>",
	"admin:<$2y$05$abcdefghijklmnopqrstuv>",
	"Set-Cookie: session=<0123456789abcdef>",
}

func TestRecognized(t *testing.T) {
	t.Parallel()
	r := New()
	for _, text := range secrets {
		before, rest, _ := strings.Cut(text, "<")
		secret, after, _ := strings.Cut(rest, ">")
		plain := before + secret + after
		for name, form := range map[string]string{
			"raw": plain, "base64": base64.StdEncoding.EncodeToString([]byte(plain)), "base64url": base64.RawURLEncoding.EncodeToString([]byte(plain)),
			"query": url.QueryEscape(plain), "path": url.PathEscape(plain),
			"base64 twice": base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString([]byte(plain)))),
		} {
			got := r.Text("start " + form + " end")
			assert.Check(t, cmp.Contains(got, Mark), "%s of %s: %s", name, text, got)
			assert.Check(t, !strings.Contains(got, secret), "%s of %s: %s", name, text, got)
			for _, hidden := range []string{url.QueryEscape(secret), url.PathEscape(secret), base64.StdEncoding.EncodeToString([]byte(plain))} {
				assert.Check(t, !strings.Contains(got, hidden), "%s of %s: %s", name, text, got)
			}
			assert.Check(t, strings.HasPrefix(got, "start "), got)
		}
	}
}

// TestPlain checks that useful text is not removed.
func TestPlain(t *testing.T) {
	t.Parallel()
	r := New()
	for _, text := range []string{
		"--authorization-mode=Node,RBAC", "--token-auth-file=/etc/x", "serviceAccountToken: false", "secretName: coredns-certs", "nodeName: vm",
		"image: registry.k8s.io/coredns/coredns:v1.15.0@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		`{"format":1,"name":"default","snapshotter":"overlayfs"}`, "/home/user/.local/share/rootlessnode/nodes/default/kubernetes/pki/ca.crt",
		"E1201 11:54:46.000000 kubelet.go:123] \"Failed to start\" err=\"exit status 3\"", "10.0.2.100:6443", "tokens: 3",
		"cgroup /sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/rootlessnode-default",
		"authentication:\n  anonymous: {enabled: true}\nauthorization:\n  mode: Webhook", "secretChangeStrategy: []", "tokencleaner.go:123] starting",
		"fe80::1%25eth0", "100%", "authentication failed",
	} {
		assert.Check(t, cmp.Equal(r.Text(text), text))
	}
}
