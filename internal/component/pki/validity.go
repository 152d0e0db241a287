package pki

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const (
	// reloadTime is the time in which every running program has read a renewed file. client-go looks for a new client
	// certificate every five minutes (transport/cert_rotation.go, CertCallbackRefreshDuration), and until then continues
	// to use connections that it opened with the former certificate. The API server refuses requests on them as soon as
	// that certificate has expired.
	reloadTime = 5 * time.Minute
	// renewMargin is the time between two looks at the certificates, with a reserve.
	renewMargin = time.Minute
)

// Validity is the time for which a certificate is valid.
type Validity struct {
	// Name is the name of the certificate for people.
	Name                string
	NotBefore, NotAfter time.Time
	// ByKubelet is set if the kubelet renews the certificate.
	ByKubelet bool
}

func validity(name string, cert *x509.Certificate) Validity {
	return Validity{Name: name, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter}
}

// kubeletLatest is the part of its lifetime that a certificate has left when the kubelet renews it at the latest. The
// kubelet chooses a random time when 10 to 30 % are left (client-go, util/certificate, nextRotationDeadline).
const kubeletLatest = 10

// RenewAt returns the time at which the certificate is renewed at the latest. The node renews its own certificates when a
// third of the lifetime is left, but in time for running programs to read the new one.
func (v Validity) RenewAt() time.Time {
	life := v.NotAfter.Sub(v.NotBefore)
	if v.ByKubelet {
		return v.NotAfter.Add(-life / kubeletLatest)
	}
	return v.NotAfter.Add(-max(life/3, reloadTime+renewMargin))
}

// ReadValidity reads the first certificate of a PEM file, which may also contain its key.
func ReadValidity(name, path string) (Validity, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Validity{}, fmt.Errorf("certificate %s: %w", name, err)
	}
	v, err := ParseValidity(name, data)
	if err != nil {
		return Validity{}, fmt.Errorf("%s: %w", path, err)
	}
	return v, nil
}

// ParseValidity is ReadValidity for the content of a file.
func ParseValidity(name string, data []byte) (Validity, error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != pemCert {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return Validity{}, fmt.Errorf("certificate %s: %w", name, err)
		}
		return validity(name, cert), nil
	}
	return Validity{}, fmt.Errorf("certificate %s: no certificate in PEM format", name)
}

// Validities returns the validity of all authorities and certificates of want below dir. The errors of files that
// cannot be read are joined.
func Validities(dir string, want Spec) ([]Validity, error) {
	var names []string
	for _, a := range want.Authorities {
		names = append(names, a.Name)
	}
	for _, c := range want.Certificates {
		names = append(names, c.Name)
	}
	var all []Validity
	var errs []error
	for _, name := range names {
		v, err := ReadValidity(name, filepath.Join(dir, filepath.FromSlash(name+certSuffix)))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, v)
	}
	return all, errors.Join(errs...)
}
