package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/component"
)

const (
	pemKey    = "PRIVATE KEY"
	pemCert   = "CERTIFICATE"
	pemPublic = "PUBLIC KEY"
)

// backdate is how long before its creation a certificate is valid, in case the clock is set back.
const backdate = 5 * time.Minute

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	return key, nil
}

func selfSign(a Authority, key *ecdsa.PrivateKey, now time.Time, life time.Duration) (*x509.Certificate, error) {
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: a.CommonName},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		// No intermediate authorities, so that a stolen certificate cannot sign others.
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}
	return create(template, template, key, key)
}

func sign(c component.Certificate, key *ecdsa.PrivateKey, ca pair, now time.Time, life time.Duration) (*x509.Certificate, error) {
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: c.CommonName, Organization: c.Organizations},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: usages(c),
		DNSNames:    c.DNSNames, BasicConstraintsValid: true,
	}
	for _, a := range c.Addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(a.AsSlice()))
	}
	// A certificate must not outlive its authority.
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	return create(template, ca.cert, key, ca.key)
}

func create(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

func usages(c component.Certificate) []x509.ExtKeyUsage {
	var u []x509.ExtKeyUsage
	if c.Server {
		u = append(u, x509.ExtKeyUsageServerAuth)
	}
	if c.Client {
		u = append(u, x509.ExtKeyUsageClientAuth)
	}
	return u
}

// matches reports whether cert matches want, which must be normal.
func matches(want component.Certificate, cert *x509.Certificate) bool {
	have := component.Certificate{Organizations: cert.Subject.Organization, DNSNames: cert.DNSNames}
	for _, ip := range cert.IPAddresses {
		if a, ok := netip.AddrFromSlice(ip); ok {
			have.Addresses = append(have.Addresses, a.Unmap())
		}
	}
	have = normal(have)
	return cert.Subject.CommonName == want.CommonName &&
		slices.Equal(have.Organizations, want.Organizations) &&
		slices.EqualFunc(have.DNSNames, want.DNSNames, strings.EqualFold) &&
		slices.Equal(have.Addresses, want.Addresses) &&
		slices.Equal(cert.ExtKeyUsage, usages(want))
}

func signedBy(ca, cert *x509.Certificate) bool {
	return cert.CheckSignatureFrom(ca) == nil
}

func encodeCert(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: c.Raw})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

func encodePublic(key *ecdsa.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPublic, Bytes: der}), nil
}

func parseCert(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != pemCert {
		return nil, errors.New("no certificate in PEM format")
	}
	return x509.ParseCertificate(block.Bytes)
}

func parseKey(data []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != pemKey {
		return nil, errors.New("no private key in PEM format (PKCS #8)")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("key of type %T is not an ECDSA key", key)
	}
	return ec, nil
}
