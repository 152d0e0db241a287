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

// BootstrapGroup is the group of those who come with a bootstrap token of CreateBootstrapToken. Its rights are in
// pkg/component/resources.
const BootstrapGroup = "system:bootstrappers:rootlessnode"

// BootstrapUserPrefix begins the name of whoever comes with any bootstrap token; the token's ID follows.
const BootstrapUserPrefix = api.BootstrapUserPrefix

const tokenSecretsPath = "/api/v1/namespaces/" + metav1.NamespaceSystem + "/secrets"

// BootstrapToken is a bootstrap token without its secret.
type BootstrapToken struct {
	ID string `json:"id"`
	// Expires is when it is of no use any more; zero if it never expires. A controller removes it then.
	Expires     time.Time `json:"expires,omitzero"`
	Description string    `json:"description,omitempty"`
}

// CreateBootstrapToken makes a bootstrap token that nodes join with until expires, and returns it: "ID.SECRET". Nothing but
// the answer and the cluster's Secret has it. It authenticates as a member of BootstrapGroup and signs
// kube-public/cluster-info.
func (c *Client) CreateBootstrapToken(ctx context.Context, expires time.Time, description string) (string, error) {
	token, err := util.GenerateBootstrapToken()
	if err != nil {
		return "", fmt.Errorf("make a bootstrap token: %w", err)
	}
	id, secret, _ := strings.Cut(token, ".")
	data := map[string]string{
		api.BootstrapTokenIDKey: id, api.BootstrapTokenSecretKey: secret,
		api.BootstrapTokenExpirationKey:       expires.UTC().Format(time.RFC3339),
		api.BootstrapTokenUsageAuthentication: "true", api.BootstrapTokenUsageSigningKey: "true",
		api.BootstrapTokenExtraGroupsKey: BootstrapGroup,
	}
	if description != "" {
		data[api.BootstrapTokenDescriptionKey] = description
	}
	body, err := json.Marshal(corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: util.BootstrapTokenSecretName(id)},
		Type:       api.SecretTypeBootstrapToken, StringData: data,
	})
	if err != nil {
		return "", fmt.Errorf("make a bootstrap token: %w", err)
	}
	err = c.do(ctx, request{method: http.MethodPost, path: tokenSecretsPath, contentType: mimeJSON, body: body}, nil)
	if err != nil {
		return "", fmt.Errorf("make a bootstrap token: %w", err)
	}
	return token, nil
}

// wireToken is what is decoded of a bootstrap token: not its secret.
type wireToken struct {
	Data struct {
		ID          []byte `json:"token-id"`
		Expiration  []byte `json:"expiration"`
		Description []byte `json:"description"`
	} `json:"data"`
}

// BootstrapTokens returns the cluster's bootstrap tokens, the one that expires last at the end. One whose expiry cannot be
// read has expired, as for the API server.
func (c *Client) BootstrapTokens(ctx context.Context) ([]BootstrapToken, error) {
	var list struct {
		Items []wireToken `json:"items"`
	}
	query := url.Values{"fieldSelector": {"type=" + string(api.SecretTypeBootstrapToken)}}
	if err := c.do(ctx, request{method: http.MethodGet, path: tokenSecretsPath, query: query}, &list); err != nil {
		return nil, fmt.Errorf("list bootstrap tokens: %w", err)
	}
	tokens := make([]BootstrapToken, 0, len(list.Items))
	for _, w := range list.Items {
		t := BootstrapToken{ID: string(w.Data.ID), Description: string(w.Data.Description)}
		if len(w.Data.Expiration) > 0 {
			var err error
			if t.Expires, err = time.Parse(time.RFC3339, string(w.Data.Expiration)); err != nil {
				t.Expires = time.Unix(0, 0).UTC()
			}
		}
		tokens = append(tokens, t)
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

// BootstrapTokenID returns the ID of a token that is named by it or written out, and whether it is one. The part after the
// ID, the secret, plays no role.
func BootstrapTokenID(idOrToken string) (string, bool) {
	id, secret, written := strings.Cut(idOrToken, ".")
	return id, util.IsValidBootstrapTokenID(id) && (!written || secret != "")
}

// DeleteBootstrapToken removes the bootstrap token of that ID, if there is one.
func (c *Client) DeleteBootstrapToken(ctx context.Context, id string) (deleted bool, err error) {
	path := tokenSecretsPath + "/" + url.PathEscape(util.BootstrapTokenSecretName(id))
	err = c.do(ctx, request{method: http.MethodDelete, path: path}, nil)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete bootstrap token %s: %w", id, err)
	}
	return true, nil
}
