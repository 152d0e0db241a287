package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const csrsPath = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

// Signers of a kubelet's certificates, which exist in every conformant cluster:
// https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/#kubernetes-signers
const (
	SignerKubeletClient  = certificatesv1.KubeAPIServerClientKubeletSignerName
	SignerKubeletServing = certificatesv1.KubeletServingSignerName
)

// CSR is a CertificateSigningRequest with its requester and its status.
type CSR struct {
	Name, UID string
	// Signer is the signer's name. Username and Groups are the requester, as authenticated by the API server.
	Signer, Username string
	Groups           []string
	// PEM is the request itself. Usages are the requested key usages, for example "client auth".
	PEM    []byte
	Usages []string
	// Lifetime is the requested lifetime; 0 if the signer may choose.
	Lifetime time.Duration
	// Approved and Denied are the decision, Failed is set if the signer failed. Why contains reason and message of Denied or
	// Failed in one line.
	Approved, Denied, Failed bool
	Why                      string
	// Certificate is PEM; nil until it is issued.
	Certificate []byte
}

// Pending reports whether there is no decision yet.
func (r CSR) Pending() bool { return !r.Approved && !r.Denied && !r.Failed }

// CertificateRequest is the argument of RequestCertificate.
type CertificateRequest struct {
	// NamePrefix is the prefix of the object's name; the API server adds a unique suffix.
	NamePrefix string
	// Signer is the name of the signer.
	Signer string
	// PEM is a block of the type CERTIFICATE REQUEST.
	PEM []byte
	// Usages are Kubernetes key usages. Each signer allows only some.
	Usages []string
	// Lifetime is the requested lifetime; 0 leaves it to the signer. The API requires at least ten minutes.
	Lifetime time.Duration
}

// RequestCertificate requests a certificate, waits until it is issued, and returns its PEM. It returns an error with the
// reason if the request is denied or signing fails, or if the server refuses the client or is not trusted. A server that is
// not reachable is retried until ctx ends. progress receives one line for each thing that the function waits for; it may be
// nil.
func (c certificates) RequestCertificate(ctx context.Context, r CertificateRequest, progress func(string)) ([]byte, error) {
	name, err := c.createCSR(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("request a certificate from %s: %w", r.Signer, err)
	}
	cert, err := c.awaitCertificate(ctx, name, r.Signer, progress)
	if err != nil {
		return nil, fmt.Errorf("certificate request %s: %w", name, err)
	}
	return cert, nil
}

func (c certificates) createCSR(ctx context.Context, r CertificateRequest) (string, error) {
	obj := certificatesv1.CertificateSigningRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: r.NamePrefix},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: r.PEM, SignerName: r.Signer},
	}
	for _, u := range r.Usages {
		obj.Spec.Usages = append(obj.Spec.Usages, certificatesv1.KeyUsage(u))
	}
	if r.Lifetime > 0 {
		s := int32(r.Lifetime / time.Second)
		obj.Spec.ExpirationSeconds = &s
	}
	delays := c.applyBackoff
	for {
		err := c.create(ctx, csrsPath, &obj)
		if err == nil {
			return obj.Name, nil
		}
		if !isRetryable(err) || Untrusted(err) {
			return "", err
		}
		if !pause(ctx, &delays, err) {
			return "", timedOut(ctx, "wait for API server "+c.Server(), err)
		}
	}
}

func (c certificates) awaitCertificate(ctx context.Context, name, signer string, progress func(string)) ([]byte, error) {
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		cert     []byte
		end      error // final error: further waiting is useless
		last     error
		reported = map[string]bool{}
	)
	report := func(text string) {
		last = errors.New(text)
		if progress != nil && !reported[text] {
			reported[text] = true
			progress(text)
		}
	}
	err := c.followCSRs(stop, "metadata.name="+name, func(r CSR, gone bool) {
		switch {
		case cert != nil || end != nil:
			return
		case gone:
			end = errors.New("deleted before a certificate was issued")
		case r.Denied:
			end = fmt.Errorf("denied: %s", r.Why)
		case r.Failed:
			end = fmt.Errorf("%s failed to sign: %s", signer, r.Why)
		case len(r.Certificate) > 0:
			cert = r.Certificate
		case r.Approved:
			report("approved, waiting for " + signer + " to sign")
		default:
			report("waiting for approval: kubectl certificate approve " + name)
		}
		if cert != nil || end != nil {
			cancel()
		}
	}, func(err error) {
		if refused := code(err); refused == http.StatusUnauthorized || refused == http.StatusForbidden || Untrusted(err) {
			end = err
			cancel()
			return
		}
		last = err
	})
	switch {
	case cert != nil:
		return cert, nil
	case end != nil:
		return nil, end
	case ctx.Err() == nil:
		return nil, err
	}
	return nil, timedOut(ctx, "wait for the certificate", last)
}

// WatchCertificateRequests calls fn for every existing CertificateSigningRequest and for each new or changed one until ctx
// ends. It returns ctx's error. The same request may be passed more than once. fn is called from one goroutine, owns its
// argument, and blocks the watch while it runs.
func (c certificates) WatchCertificateRequests(ctx context.Context, fn func(CSR)) error {
	return c.followCSRs(ctx, "", func(r CSR, gone bool) {
		if !gone {
			fn(r)
		}
	}, nil)
}

// followCSRs watches the selected requests. gone is true for a request that was deleted, or that was selected and does not
// exist.
func (c certificates) followCSRs(ctx context.Context, selector string, fn func(r CSR, gone bool), fault func(error)) error {
	f := follower[certificatesv1.CertificateSigningRequest, *certificatesv1.CertificateSigningRequest]{
		c: c.conn, path: csrsPath, selector: selector, fault: fault,
		replace: func(all []*certificatesv1.CertificateSigningRequest) {
			if len(all) == 0 && selector != "" {
				fn(CSR{}, true)
			}
			for _, o := range all {
				fn(csrOf(o), false)
			}
		},
		changed: func(o *certificatesv1.CertificateSigningRequest) { fn(csrOf(o), false) },
		deleted: func(o *certificatesv1.CertificateSigningRequest) { fn(csrOf(o), true) },
	}
	return f.run(ctx)
}

// DecideCSR approves or denies csr with a reason (one word) and a message, which are public. It does nothing if the request
// was deleted, is already decided, or has been replaced by another one of the same name.
func (c certificates) DecideCSR(ctx context.Context, csr CSR, approve bool, reason, message string) error {
	path := csrsPath + "/" + url.PathEscape(csr.Name)
	// The whole object is needed, because an update also replaces labels and annotations.
	var obj certificatesv1.CertificateSigningRequest
	err := c.do(ctx, request{method: http.MethodGet, path: path}, &obj)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("approve or deny certificate request %s: %w", csr.Name, err)
	}
	if string(obj.UID) != csr.UID {
		return nil
	}
	for _, cond := range obj.Status.Conditions {
		if cond.Type == certificatesv1.CertificateApproved || cond.Type == certificatesv1.CertificateDenied {
			return nil
		}
	}
	cond := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: reason, Message: message,
		LastUpdateTime: metav1.NewTime(c.now()),
	}
	if approve {
		cond.Type = certificatesv1.CertificateApproved
	}
	obj.Status.Conditions = append(obj.Status.Conditions, cond)
	obj.APIVersion, obj.Kind = "certificates.k8s.io/v1", "CertificateSigningRequest"
	body, err := json.Marshal(&obj)
	if err == nil {
		// Use PUT, because approvers have only the verb update for this subresource.
		err = c.do(ctx, request{method: http.MethodPut, path: path + "/approval", contentType: mimeJSON, body: body}, nil)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("approve or deny certificate request %s: %w", csr.Name, err)
	}
	return nil
}

func csrOf(o *certificatesv1.CertificateSigningRequest) CSR {
	r := CSR{
		Name: o.Name, UID: string(o.UID), Signer: o.Spec.SignerName, Username: o.Spec.Username, Groups: o.Spec.Groups,
		PEM: o.Spec.Request, Usages: texts(o.Spec.Usages), Certificate: o.Status.Certificate,
	}
	if o.Spec.ExpirationSeconds != nil {
		r.Lifetime = time.Duration(*o.Spec.ExpirationSeconds) * time.Second
	}
	for _, cond := range o.Status.Conditions {
		switch cond.Type {
		case certificatesv1.CertificateApproved:
			r.Approved = true
			continue
		case certificatesv1.CertificateDenied:
			r.Denied = true
		case certificatesv1.CertificateFailed:
			r.Failed = true
		}
		r.Why = cond.Reason + ": " + cond.Message
	}
	return r
}
