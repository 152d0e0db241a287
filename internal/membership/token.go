package membership

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"slices"
	"strings"

	tokenutil "k8s.io/cluster-bootstrap/token/util"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// token is a bootstrap token. The ID may be shown, the secret must not be.
type token struct{ id, secret string }

// String returns the part of the token that may be logged.
func (t *token) String() string { return t.id }

func parseToken(s string) (*token, error) {
	s = strings.TrimSpace(s)
	if !tokenutil.IsValidBootstrapToken(s) {
		return nil, errdefs.Config("malformed bootstrap token: must be ID.SECRET, with 6 and 16 characters of a-z and 0-9").
			With(joinHint("https://HOST:6443"))
	}
	id, secret, _ := strings.Cut(s, ".")
	return &token{id, secret}, nil
}

const pinPrefix = "sha256:"

// Hashes returns the pins of all certificates in a PEM text without duplicates, at least one: "sha256:" and the hex digest
// of the public key (SubjectPublicKeyInfo), the format of config.Join.CACertHashes and kubeadm. A joining node must be given
// all of them.
func Hashes(text []byte) ([]string, error) {
	certs, err := certificates(text)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, c := range certs {
		digest := sha256.Sum256(c.RawSubjectPublicKeyInfo)
		if pin := pinPrefix + hex.EncodeToString(digest[:]); !slices.Contains(all, pin) {
			all = append(all, pin)
		}
	}
	return all, nil
}

// certificates parses the certificates of a PEM text. It returns at least one or an error.
func certificates(text []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, errors.New("no PEM certificate found")
	}
	return certs, nil
}

// sameAuthority reports whether two bundles share a key. A cluster that rotates its CA has both CAs for a while.
func sameAuthority(a, b []byte) bool {
	ha, errA := Hashes(a)
	hb, errB := Hashes(b)
	return errA == nil && errB == nil && slices.ContainsFunc(ha, func(h string) bool { return slices.Contains(hb, h) })
}
