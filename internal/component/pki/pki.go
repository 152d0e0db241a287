// Package pki manages the keys and certificates of a node's embedded control plane: authorities, one certificate per
// component, the key pair for service account tokens, and the key that encrypts Secrets at rest.
//
// All keys are ECDSA P-256. They are created in their directory, do not leave it, and have mode 0600 in a directory of
// mode 0700. An authority keeps its key when its certificate is renewed, so that certificates that it signed before
// remain valid. Other certificates get a new key on renewal. The package never overwrites files that it cannot read: a
// damaged file is an error, because it may be the only copy of a cluster's key.
//
// Runs in: parent or child side; the caller passes the directory.
package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const (
	certSuffix = ".crt"
	keySuffix  = ".key"

	dirMode  fs.FileMode = 0o700
	keyMode  fs.FileMode = 0o600
	certMode fs.FileMode = 0o644
)

// Changes lists what Ensure did, by the names of authorities, certificates and files.
type Changes struct {
	// Created did not exist before. Renewed existed, and were close to their end or did not match the Spec.
	Created, Renewed []string
	// Late are those of Renewed that are not valid now, or will expire before running programs have read the new file.
	Late []string
}

// None reports whether nothing was changed.
func (c Changes) None() bool { return len(c.Created) == 0 && len(c.Renewed) == 0 }

// Ensure creates and renews the authorities and certificates of want below dir, the service account key pair and the
// encryption configuration. Valid files are kept. A certificate is renewed if it is close to its end at now (see
// Validity.RenewAt), if it is not valid yet, or if its subject, names, usages or authority differ from want.
//
// All existing files are read and checked before anything is written. If files cannot be read or parsed, all errors are
// returned and nothing is changed.
func Ensure(dir string, want Spec, now time.Time) (Changes, error) {
	e := &ensurer{dir: dir, spec: want, now: now, authorities: map[string]pair{}}
	if err := e.plan(); err != nil {
		return Changes{}, fmt.Errorf("certificates in %s: %w", dir, err)
	}
	if err := e.write(); err != nil {
		return Changes{}, fmt.Errorf("certificates in %s: %w", dir, err)
	}
	return e.changes, nil
}

type pair struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

type ensurer struct {
	dir         string
	spec        Spec
	now         time.Time
	authorities map[string]pair

	// keys are written before certs, because a key without its certificate is a normal intermediate state, whereas a
	// certificate without its key is not.
	keys, certs []component.File
	changes     Changes
}

func (e *ensurer) plan() error {
	var errs []error
	for _, a := range e.spec.Authorities {
		errs = append(errs, e.authority(a))
	}
	// Certificates need their authorities, so errors of authorities are returned first, without others.
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, c := range e.spec.Certificates {
		errs = append(errs, e.certificate(normal(c)))
	}
	errs = append(errs, e.serviceAccount(), e.encryption())
	return errors.Join(errs...)
}

func (e *ensurer) write() error {
	dirs := map[string]bool{e.dir: true}
	for _, f := range append(e.keys, e.certs...) {
		dirs[filepath.Dir(f.Path)] = true
	}
	var make []component.Dir
	for d := range dirs {
		make = append(make, component.Dir{Path: d, Mode: dirMode})
	}
	if err := component.MakeDirs(make); err != nil {
		return err
	}
	if err := component.Write(e.keys); err != nil {
		return err
	}
	return component.Write(e.certs)
}

func (e *ensurer) authority(a Authority) error {
	old, err := e.load(a.Name, e.read)
	if err != nil {
		return err
	}
	switch {
	case old.cert != nil && old.key == nil:
		return errdefs.Errorf("%s: the authority has a certificate but no key", e.path(a.Name+keySuffix)).
			Hintf("restore the key, or remove %s as well to create all certificates again", e.path(a.Name+certSuffix))
	case old.cert != nil && !old.key.PublicKey.Equal(old.cert.PublicKey):
		return errdefs.Errorf("%s: the authority's key does not belong to its certificate", e.path(a.Name+keySuffix)).
			Hint("restore the right key, or remove both files to create all certificates again")
	}
	if old.cert != nil && e.fresh(old.cert) && old.cert.IsCA && old.cert.Subject.CommonName == a.CommonName {
		e.authorities[a.Name] = old
		e.keepKey(a.Name, old.key)
		return nil
	}
	key := old.key
	if key == nil {
		if key, err = newKey(); err != nil {
			return err
		}
	}
	cert, err := selfSign(a, key, e.now, e.spec.CALifetime)
	if err != nil {
		return fmt.Errorf("%s: %w", a.Name, err)
	}
	e.authorities[a.Name] = pair{key, cert}
	return e.add(a.Name, pair{key, cert}, old.cert, true)
}

func (e *ensurer) certificate(c component.Certificate) error {
	ca, ok := e.authorities[c.Authority]
	if !ok {
		return fmt.Errorf("%s: unknown authority %q", c.Name, c.Authority)
	}
	old, err := e.load(c.Name, e.readUnlessEmpty)
	if err != nil {
		return err
	}
	if old.valid() && e.fresh(old.cert) && matches(c, old.cert) && signedBy(ca.cert, old.cert) {
		e.keepKey(c.Name, old.key)
		return nil
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	cert, err := sign(c, key, ca, e.now, e.spec.Lifetime)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	return e.add(c.Name, pair{key, cert}, old.cert, false)
}

// valid reports whether the pair has a certificate and the matching key. An interrupted write can leave a pair that
// does not match, which is then created again.
func (p pair) valid() bool {
	return p.cert != nil && p.key != nil && p.key.PublicKey.Equal(p.cert.PublicKey)
}

// fresh reports whether cert is valid now and needs no renewal yet.
func (e *ensurer) fresh(cert *x509.Certificate) bool {
	return !e.now.Before(cert.NotBefore) && !validity("", cert).RenewAt().Before(e.now)
}

// add schedules a pair to be written in place of old, which may be nil. Keys that cannot be created again are durable,
// so that they survive a crash of the host.
func (e *ensurer) add(name string, p pair, old *x509.Certificate, durable bool) error {
	keyPEM, err := encodeKey(p.key)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	e.keys = append(e.keys, component.File{Path: e.path(name + keySuffix), Mode: keyMode, Data: keyPEM, Durable: durable})
	e.certs = append(e.certs, component.File{Path: e.path(name + certSuffix), Mode: certMode, Data: encodeCert(p.cert)})
	e.note(name, old != nil)
	if old != nil && (old.NotAfter.Sub(e.now) < reloadTime || e.now.Before(old.NotBefore)) {
		e.changes.Late = append(e.changes.Late, name)
	}
	return nil
}

func (e *ensurer) note(name string, renewed bool) {
	if renewed {
		e.changes.Renewed = append(e.changes.Renewed, name)
	} else {
		e.changes.Created = append(e.changes.Created, name)
	}
}

// keepKey restores the mode of a valid key's file.
func (e *ensurer) keepKey(name string, key *ecdsa.PrivateKey) {
	path := e.path(name + keySuffix)
	data, err := os.ReadFile(path)
	if err == nil && key != nil {
		e.keys = append(e.keys, component.File{Path: path, Mode: keyMode, Data: data})
	}
}

func (e *ensurer) path(name string) string { return filepath.Join(e.dir, filepath.FromSlash(name)) }

// load reads a key and its certificate. Missing files are nil; damaged files are errors.
func (e *ensurer) load(name string, read func(name string, parse func([]byte) error) error) (pair, error) {
	var p pair
	keyErr := read(name+keySuffix, func(data []byte) (err error) {
		p.key, err = parseKey(data)
		return err
	})
	certErr := read(name+certSuffix, func(data []byte) (err error) {
		p.cert, err = parseCert(data)
		return err
	})
	return p, errors.Join(keyErr, certErr)
}

func (e *ensurer) read(name string, parse func([]byte) error) error {
	path := e.path(name)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		if err = parse(data); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	return errdefs.WithHint(err, "restore "+path+" from a backup, or remove it; the node then creates it and the other file of its pair again")
}

// readUnlessEmpty treats an empty file as missing, because a crash of the host can leave empty files that were not
// written durably.
func (e *ensurer) readUnlessEmpty(name string, parse func([]byte) error) error {
	if info, err := os.Lstat(e.path(name)); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		return nil
	}
	return e.read(name, parse)
}

func (e *ensurer) serviceAccount() error {
	var key *ecdsa.PrivateKey
	if err := e.read(saKey, func(data []byte) (err error) {
		key, err = parseKey(data)
		return err
	}); err != nil {
		return err
	}
	made := key == nil
	if made {
		var err error
		if key, err = newKey(); err != nil {
			return err
		}
		e.note(saKey, false)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return err
	}
	pubPEM, err := encodePublic(&key.PublicKey)
	if err != nil {
		return err
	}
	e.keys = append(e.keys, component.File{Path: e.path(saKey), Mode: keyMode, Data: keyPEM, Durable: true})
	// The file may contain more public keys, which an administrator added to change the signing key.
	old, err := os.ReadFile(e.path(saPub))
	if errors.Is(err, fs.ErrNotExist) || (err == nil && (made || !bytes.Contains(old, pubPEM))) {
		e.certs = append(e.certs, component.File{Path: e.path(saPub), Mode: certMode, Data: pubPEM})
		return nil
	}
	return err
}
