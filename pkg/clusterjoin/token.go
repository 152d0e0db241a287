package clusterjoin

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

// token is a bootstrap token. Its id may be shown, its secret never.
type token struct{ id, secret string }

// String is what logs may show.
func (t *token) String() string { return t.id }

func parseToken(s string) (*token, error) {
	s = strings.TrimSpace(s)
	if !tokenutil.IsValidBootstrapToken(s) {
		return nil, errdefs.WithHint(errdefs.Class(errdefs.ErrConfig,
			errors.New("the bootstrap token is malformed: want ID.SECRET, 6 and 16 of the characters a-z and 0-9")), joinHint("https://HOST:6443"))
	}
	id, secret, _ := strings.Cut(s, ".")
	return &token{id, secret}, nil
}

const pinPrefix = "sha256:"

// Hashes are the pins of all certificates in a PEM text, at least one, each once: "sha256:" and the hex digest of the public
// key (SubjectPublicKeyInfo), as config.Join.CACertHashes and kubeadm have it. Whoever joins names them all.
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

// certificates are those of a PEM text, at least one.
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
		return nil, errors.New("no certificate in PEM form")
	}
	return certs, nil
}

// sameAuthority tells whether two bundles share a key: a cluster that changes its authority has both for a while.
func sameAuthority(a, b []byte) bool {
	ha, errA := Hashes(a)
	hb, errB := Hashes(b)
	return errA == nil && errB == nil && slices.ContainsFunc(ha, func(h string) bool { return slices.Contains(hb, h) })
}
