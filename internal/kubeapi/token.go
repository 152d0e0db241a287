package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/util"
)

// BootstrapGroup is the group of clients with a bootstrap token of CreateBootstrapToken. Its permissions are in
// internal/component/resources.
const BootstrapGroup = "system:bootstrappers:rootlessnode"

// BootstrapUserPrefix is the prefix of the user name of a client with a bootstrap token; the token's ID follows.
const BootstrapUserPrefix = api.BootstrapUserPrefix

const tokenSecretsPath = "/api/v1/namespaces/" + metav1.NamespaceSystem + "/secrets"

// Annotations of a bootstrap token's Secret, which the approver of node certificates reads.
const (
	// annotationTokenNode names the only node that may join with the token.
	annotationTokenNode = "rootlessnode.dev/node-name"
	// annotationTokenSingleUse is "true" on a token for one node.
	annotationTokenSingleUse = "rootlessnode.dev/single-use"
	// annotationTokenUsedBy names the node that used a token for one node, and annotationTokenUsedAt is the time.
	annotationTokenUsedBy = "rootlessnode.dev/used-by"
	annotationTokenUsedAt = "rootlessnode.dev/used-at"
)

// BootstrapToken is a bootstrap token without its secret.
type BootstrapToken struct {
	ID string `json:"id"`
	// Expires is the expiration time, after which a controller deletes the token; zero if it does not expire.
	Expires     time.Time `json:"expires,omitzero"`
	Description string    `json:"description,omitempty"`
	// NodeName is the only node that may join with the token; empty for any new name.
	NodeName string `json:"nodeName,omitempty"`
	// SingleUse is set on a token for one node. UsedBy is the node that requested its certificate with it, and UsedAt is the
	// time of its last request.
	SingleUse bool      `json:"singleUse,omitempty"`
	UsedBy    string    `json:"usedBy,omitempty"`
	UsedAt    time.Time `json:"usedAt,omitzero"`
}

// CreateBootstrapToken creates a bootstrap token with the properties of t except the ID and returns it as "ID.SECRET". Only
// the result and the cluster's Secret contain it. It authenticates as a member of BootstrapGroup and signs
// kube-public/cluster-info.
func (c tokens) CreateBootstrapToken(ctx context.Context, t BootstrapToken) (string, error) {
	token, err := util.GenerateBootstrapToken()
	if err != nil {
		return "", fmt.Errorf("create bootstrap token: %w", err)
	}
	id, secret, _ := strings.Cut(token, ".")
	data := map[string]string{
		api.BootstrapTokenIDKey: id, api.BootstrapTokenSecretKey: secret,
		api.BootstrapTokenExpirationKey:       t.Expires.UTC().Format(time.RFC3339),
		api.BootstrapTokenUsageAuthentication: "true", api.BootstrapTokenUsageSigningKey: "true",
		api.BootstrapTokenExtraGroupsKey: BootstrapGroup,
	}
	if t.Description != "" {
		data[api.BootstrapTokenDescriptionKey] = t.Description
	}
	annotations := map[string]string{}
	if t.NodeName != "" {
		annotations[annotationTokenNode] = t.NodeName
	}
	if t.SingleUse {
		annotations[annotationTokenSingleUse] = "true"
	}
	body, err := json.Marshal(corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: util.BootstrapTokenSecretName(id), Annotations: annotations},
		Type:       api.SecretTypeBootstrapToken, StringData: data,
	})
	if err != nil {
		return "", fmt.Errorf("create bootstrap token: %w", err)
	}
	err = c.do(ctx, request{method: http.MethodPost, path: tokenSecretsPath, contentType: mimeJSON, body: body}, nil)
	if err != nil {
		return "", fmt.Errorf("create bootstrap token: %w", err)
	}
	return token, nil
}

// wireToken contains the decoded fields of a bootstrap token, without its secret.
type wireToken struct {
	Metadata struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Data struct {
		ID          []byte `json:"token-id"`
		Expiration  []byte `json:"expiration"`
		Description []byte `json:"description"`
	} `json:"data"`
}

func (w *wireToken) token() BootstrapToken {
	notes := w.Metadata.Annotations
	t := BootstrapToken{
		ID: string(w.Data.ID), Description: string(w.Data.Description), NodeName: notes[annotationTokenNode],
		SingleUse: notes[annotationTokenSingleUse] == "true", UsedBy: notes[annotationTokenUsedBy],
	}
	t.UsedAt, _ = time.Parse(time.RFC3339Nano, notes[annotationTokenUsedAt]) // zero if it is not set
	if len(w.Data.Expiration) > 0 {
		var err error
		if t.Expires, err = time.Parse(time.RFC3339, string(w.Data.Expiration)); err != nil {
			t.Expires = time.Unix(0, 0).UTC()
		}
	}
	return t
}

// BootstrapToken returns the bootstrap token with this ID, or nil if it does not exist.
func (c tokens) BootstrapToken(ctx context.Context, id string) (*BootstrapToken, error) {
	var w wireToken
	err := c.do(ctx, request{method: http.MethodGet, path: tokenPath(id)}, &w)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read bootstrap token %s: %w", id, err)
	}
	t := w.token()
	return &t, nil
}

// UseBootstrapToken records that a node used a token for one node, and the time.
func (c tokens) UseBootstrapToken(ctx context.Context, id, nodeName string, at time.Time) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		annotationTokenUsedBy: nodeName, annotationTokenUsedAt: at.UTC().Format(time.RFC3339Nano),
	}}})
	if err == nil {
		err = c.do(ctx, request{method: http.MethodPatch, path: tokenPath(id), contentType: mimeMergePatch, body: body}, nil)
	}
	if err != nil {
		return fmt.Errorf("record the use of bootstrap token %s: %w", id, err)
	}
	return nil
}

func tokenPath(id string) string {
	return tokenSecretsPath + "/" + url.PathEscape(util.BootstrapTokenSecretName(id))
}

// BootstrapTokens returns the cluster's bootstrap tokens in the order of their expiration. A token with a malformed
// expiration has expired, as for the API server.
func (c tokens) BootstrapTokens(ctx context.Context) ([]BootstrapToken, error) {
	var list struct {
		Items []wireToken `json:"items"`
	}
	query := url.Values{"fieldSelector": {"type=" + string(api.SecretTypeBootstrapToken)}}
	if err := c.do(ctx, request{method: http.MethodGet, path: tokenSecretsPath, query: query}, &list); err != nil {
		return nil, fmt.Errorf("list bootstrap tokens: %w", err)
	}
	tokens := make([]BootstrapToken, 0, len(list.Items))
	for i := range list.Items {
		tokens = append(tokens, list.Items[i].token())
	}
	slices.SortFunc(tokens, func(a, b BootstrapToken) int {
		if a.Expires.IsZero() != b.Expires.IsZero() {
			if a.Expires.IsZero() {
				return 1
			}
			return -1
		}
		if by := a.Expires.Compare(b.Expires); by != 0 {
			return by
		}
		return strings.Compare(a.ID, b.ID)
	})
	return tokens, nil
}

// BootstrapTokenID returns the ID of idOrToken, which is an ID or a whole token, and whether it is valid. The secret, the
// part after the ID, is not checked.
func BootstrapTokenID(idOrToken string) (string, bool) {
	id, secret, written := strings.Cut(idOrToken, ".")
	return id, util.IsValidBootstrapTokenID(id) && (!written || secret != "")
}

// DeleteBootstrapToken deletes the bootstrap token with this ID and reports whether it existed.
func (c tokens) DeleteBootstrapToken(ctx context.Context, id string) (deleted bool, err error) {
	err = c.do(ctx, request{method: http.MethodDelete, path: tokenPath(id)}, nil)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete bootstrap token %s: %w", id, err)
	}
	return true, nil
}
