package kubeapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func csrObject(name, certificate string, conditions ...string) object {
	o := object{
		"metadata": object{"name": name, "uid": "u-" + name, "labels": object{"keep": "me"}},
		"spec": object{
			"request": base64.StdEncoding.EncodeToString([]byte("PEM")), "signerName": SignerKubeletClient,
			"username": "system:bootstrap:abcdef", "groups": []string{"system:bootstrappers"},
			"usages": []string{"client auth"}, "expirationSeconds": 600,
		},
	}
	st := object{}
	if certificate != "" {
		st["certificate"] = base64.StdEncoding.EncodeToString([]byte(certificate))
	}
	var all []object
	for _, c := range conditions {
		all = append(all, object{"type": c, "status": "True", "reason": "R" + c, "message": "because"})
	}
	st["conditions"] = all
	o["status"] = st
	return o
}

var request1 = CertificateRequest{
	NamePrefix: "csr-", Signer: SignerKubeletClient, PEM: []byte("PEM"), Usages: []string{"client auth"}, Lifetime: 10 * time.Minute,
}

func TestRequestCertificate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		steps    []object // after the request was made
		cert     string
		err      string
		reported []string
	}{
		"issued at once": {steps: []object{csrObject("csr-1", "CERT", "Approved")}, cert: "CERT"},
		"approved manually": {
			steps:    []object{csrObject("csr-1", ""), csrObject("csr-1", ""), csrObject("csr-1", "", "Approved"), csrObject("csr-1", "CERT", "Approved")},
			cert:     "CERT",
			reported: []string{"waiting for approval: kubectl certificate approve csr-1", "approved, waiting for " + SignerKubeletClient + " to sign"},
		},
		"denied": {
			steps: []object{csrObject("csr-1", "", "Denied")},
			err:   "certificate request csr-1: denied: RDenied: because",
		},
		"failed": {
			steps: []object{csrObject("csr-1", "", "Approved", "Failed")},
			err:   "certificate request csr-1: " + SignerKubeletClient + " failed to sign: RFailed: because",
		},
		"gone": {err: "certificate request csr-1: deleted before a certificate was issued"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t, true)
			f.other = func(w http.ResponseWriter, r *http.Request) {
				var got object
				assert.Check(t, json.NewDecoder(r.Body).Decode(&got))
				assert.Check(t, is.Equal(r.Method+" "+r.URL.Path, "POST "+csrsPath))
				assert.Check(t, is.Equal(got["metadata"].(object)["generateName"], "csr-"))
				assert.Check(t, is.DeepEqual(got["spec"], object{
					"request": base64.StdEncoding.EncodeToString([]byte("PEM")), "signerName": SignerKubeletClient,
					"usages": []any{"client auth"}, "expirationSeconds": 600.0,
				}))
				if len(tc.steps) > 0 {
					f.put(tc.steps[0])
				}
				got["metadata"].(object)["name"] = "csr-1"
				answer(w, 201, got)
			}
			var reported []string
			next := 1
			cert, err := f.client(t).RequestCertificate(t.Context(), request1, func(s string) {
				reported = append(reported, s)
				for range 2 { // a repetition is not reported, so one step may be two changes
					if next < len(tc.steps) {
						f.put(tc.steps[next])
						next++
					}
				}
			})
			if tc.err != "" {
				assert.Error(t, err, tc.err)
			} else {
				assert.NilError(t, err)
			}
			assert.Equal(t, string(cert), tc.cert)
			assert.DeepEqual(t, reported, tc.reported)
		})
	}
}

func TestRequestCertificateEnds(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, false)
	asked := 0
	f.other = func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 1 {
			answer(w, 503, status(503, "ServiceUnavailable", "starting"))
			return
		}
		answer(w, 403, status(403, "Forbidden", "may not create certificatesigningrequests"))
	}
	_, err := f.client(t).RequestCertificate(t.Context(), request1, nil)
	assert.ErrorContains(t, err, "request a certificate from "+SignerKubeletClient+": ")
	assert.ErrorContains(t, err, "may not create")
	assert.Assert(t, apierrors.IsForbidden(err))
	assert.Equal(t, asked, 2)

	// With a deadline, the error contains what it waited for.
	f.other = func(w http.ResponseWriter, _ *http.Request) {
		o := csrObject("csr-1", "")
		f.put(o)
		answer(w, 201, o)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	_, err = f.client(t).RequestCertificate(ctx, request1, func(string) { cancel(stop) })
	assert.ErrorIs(t, err, stop)
	assert.ErrorContains(t, err, "last: waiting for approval: kubectl certificate approve csr-1")

	// The credentials become invalid while the client waits.
	f = newFakeAPI(t, false)
	deny := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			answer(w, 201, csrObject("csr-1", ""))
			return
		}
		answer(w, 401, status(401, "Unauthorized", "Unauthorized"))
	})
	f.Config.Handler = deny
	_, err = f.client(t).RequestCertificate(t.Context(), request1, nil)
	assert.Assert(t, apierrors.IsUnauthorized(err), "%v", err)
	assert.Assert(t, !errors.Is(err, errdefs.ErrTimeout))
}

func TestWatchCertificateRequests(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, false)
	f.put(csrObject("a", ""))
	ctx, cancel := context.WithCancel(t.Context())
	var got []CSR
	err := f.client(t).WatchCertificateRequests(ctx, func(r CSR) {
		switch got = append(got, r); len(got) {
		case 1:
			f.remove(csrObject("a", ""))
			f.put(csrObject("b", "CERT", "Approved"))
		case 2:
			cancel()
		}
	})
	assert.ErrorIs(t, err, context.Canceled)
	a := CSR{
		Name: "a", UID: "u-a", Signer: SignerKubeletClient, Username: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers"},
		PEM: []byte("PEM"), Usages: []string{"client auth"}, Lifetime: 10 * time.Minute,
	}
	b := a
	b.Name, b.UID, b.Approved, b.Certificate = "b", "u-b", true, []byte("CERT")
	assert.DeepEqual(t, got, []CSR{a, b})
	assert.Assert(t, a.Pending() && !b.Pending())
}

func TestDecideCSR(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		there   object
		uid     string
		approve bool
		want    string
	}{
		"approve":                     {csrObject("c", ""), "u-c", true, "Approved"},
		"deny":                        {csrObject("c", ""), "u-c", false, "Denied"},
		"decided":                     {csrObject("c", "", "Denied"), "u-c", true, ""},
		"replaced by another request": {csrObject("c", ""), "u-old", true, ""},
		"gone":                        {nil, "u-c", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t, false)
			var put object
			f.other = func(w http.ResponseWriter, r *http.Request) {
				switch {
				case tc.there == nil:
					answer(w, 404, status(404, "NotFound", "no such request"))
				case r.Method == http.MethodPut:
					assert.Check(t, is.Equal(r.URL.Path, csrsPath+"/c/approval"))
					assert.Check(t, json.NewDecoder(r.Body).Decode(&put))
					answer(w, 200, object{})
				default:
					assert.Check(t, is.Equal(r.URL.Path, csrsPath+"/c"))
					answer(w, 200, tc.there)
				}
			}
			err := f.client(t).DecideCSR(t.Context(), CSR{Name: "c", UID: tc.uid}, tc.approve, "Checked", "all is well")
			assert.NilError(t, err)
			if tc.want == "" {
				assert.Assert(t, put == nil)
				return
			}
			cond := put["status"].(object)["conditions"].([]any)[0].(object)
			assert.Equal(t, cond["type"], tc.want)
			assert.Equal(t, cond["status"], "True")
			assert.Equal(t, cond["reason"], "Checked")
			assert.Equal(t, cond["message"], "all is well")
			assert.DeepEqual(t, put["metadata"].(object)["labels"], object{"keep": "me"})
			assert.Equal(t, put["spec"].(object)["username"], "system:bootstrap:abcdef")
		})
	}
}
