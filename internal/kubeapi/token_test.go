package kubeapi

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cluster-bootstrap/token/util"
)

func TestCreateBootstrapToken(t *testing.T) {
	f := newFakeAPI(t, false)
	var made corev1.Secret
	f.other = func(w http.ResponseWriter, r *http.Request) {
		assert.Check(t, is.Equal(r.Method+" "+r.URL.Path, "POST /api/v1/namespaces/kube-system/secrets"))
		assert.Check(t, json.NewDecoder(r.Body).Decode(&made))
		answer(w, 201, object{})
	}
	expires := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	token, err := f.client(t).CreateBootstrapToken(t.Context(), BootstrapToken{Expires: expires, Description: "for b", NodeName: "b", SingleUse: true})
	assert.NilError(t, err)
	assert.Assert(t, util.IsValidBootstrapToken(token))
	id, secret, _ := strings.Cut(token, ".")
	assert.Equal(t, made.Name, "bootstrap-token-"+id)
	assert.Equal(t, made.Namespace, "kube-system")
	assert.Equal(t, string(made.Type), "bootstrap.kubernetes.io/token")
	assert.DeepEqual(t, made.StringData, map[string]string{
		"token-id": id, "token-secret": secret, "expiration": "2026-01-02T02:04:05Z", "description": "for b",
		"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
		"auth-extra-groups": "system:bootstrappers:rootlessnode",
	})
	assert.DeepEqual(t, made.Annotations, map[string]string{"rootlessnode.dev/node-name": "b", "rootlessnode.dev/single-use": "true"})
	assert.NilError(t, util.ValidateBootstrapGroupName(BootstrapGroup))

	f.other = func(w http.ResponseWriter, _ *http.Request) { answer(w, 403, status(403, "Forbidden", "not you")) }
	token, err = f.client(t).CreateBootstrapToken(t.Context(), BootstrapToken{Expires: expires})
	assert.ErrorContains(t, err, "create bootstrap token: ")
	assert.Equal(t, token, "")
}

func TestBootstrapTokens(t *testing.T) {
	f := newFakeAPI(t, false)
	token := func(id, expires, description string) object {
		data := object{}
		for k, v := range map[string]string{"token-id": id, "expiration": expires, "description": description, "token-secret": "s3cret"} {
			if v != "" {
				data[k] = base64.StdEncoding.EncodeToString([]byte(v))
			}
		}
		return object{"metadata": object{"name": "bootstrap-token-" + id}, "data": data}
	}
	f.other = func(w http.ResponseWriter, r *http.Request) {
		assert.Check(t, is.Equal(r.URL.Path, "/api/v1/namespaces/kube-system/secrets"))
		assert.Check(t, is.Equal(r.URL.Query().Get("fieldSelector"), "type=bootstrap.kubernetes.io/token"))
		answer(w, 200, object{"items": []object{
			token("eeeeee", "", "for ever"), token("bbbbbb", "2026-01-02T03:04:05Z", ""), token("aaaaaa", "2026-01-02T03:04:05Z", "d"),
			token("cccccc", "tomorrow", ""),
		}})
	}
	got, err := f.client(t).BootstrapTokens(t.Context())
	assert.NilError(t, err)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	assert.DeepEqual(t, got, []BootstrapToken{
		{ID: "cccccc", Expires: time.Unix(0, 0).UTC()}, {ID: "aaaaaa", Expires: at, Description: "d"}, {ID: "bbbbbb", Expires: at},
		{ID: "eeeeee", Description: "for ever"},
	})
	text, err := json.Marshal(got)
	assert.NilError(t, err)
	assert.Assert(t, !strings.Contains(string(text), "s3cret") && !strings.Contains(string(text), "0001"), string(text))
}

func TestBootstrapTokenID(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{
		"abc123": true, "abc123.0123456789abcdef": true, "abc123.x": true,
		"": false, "abc12": false, "ABC123": false, "abc123.": false, "../abc": false, "0123456789abcdef": false,
	} {
		id, ok := BootstrapTokenID(in)
		assert.Equal(t, ok, want, in)
		assert.Assert(t, !ok || id == "abc123", in)
	}
}

func TestDeleteBootstrapToken(t *testing.T) {
	f := newFakeAPI(t, false)
	f.other = func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete && r.URL.Path == "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abc123" {
			answer(w, 200, object{})
			return
		}
		answer(w, 404, status(404, "NotFound", "no such secret"))
	}
	c := f.client(t)
	for id, want := range map[string]bool{"abc123": true, "abc124": false} {
		deleted, err := c.DeleteBootstrapToken(t.Context(), id)
		assert.NilError(t, err)
		assert.Equal(t, deleted, want)
	}
	f.other = func(w http.ResponseWriter, _ *http.Request) { answer(w, 403, status(403, "Forbidden", "not you")) }
	_, err := c.DeleteBootstrapToken(t.Context(), "abc123")
	assert.ErrorContains(t, err, "delete bootstrap token abc123: ")
}
