//go:build ignore

// This piece waits for a certificate with client-go's util/certificate/csr.

package kubeapi

import (
	"context"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate/csr"
)

// measureCsr waits in the background for a request that is not issued. An empty request is refused by the API server.
func measureCsr(cfg *rest.Config) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		name, uid, _ := csr.RequestCertificateWithContext(ctx, client, nil, "measured", certificatesv1.KubeletServingSignerName, nil,
			[]certificatesv1.KeyUsage{certificatesv1.UsageServerAuth}, nil)
		_, _ = csr.WaitForCertificate(ctx, client, name, uid)
	}()
	return nil
}
