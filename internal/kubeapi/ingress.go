package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
)

// ApplyIngress sets the load balancer status of a Service to ips if its UID is uid. If ips is empty, the API server removes
// the addresses that were applied before, and keeps those of other managers.
//
// The addresses have ipMode Proxy, because connections to them arrive at the node's forwards: kube-proxy must not treat the
// host's address as its own inside (https://kubernetes.io/docs/concepts/services-networking/service/#load-balancer-ip-mode).
func (c objects) ApplyIngress(ctx context.Context, namespace, name, uid string, ips []string) error {
	type ingress struct {
		IP     string `json:"ip"`
		IPMode string `json:"ipMode"`
	}
	object := map[string]any{
		"apiVersion": "v1", "kind": "Service",
		"metadata": map[string]any{"name": name, "namespace": namespace, "uid": uid},
	}
	if len(ips) > 0 {
		list := make([]ingress, len(ips))
		for i, ip := range ips {
			list[i] = ingress{ip, "Proxy"}
		}
		object["status"] = map[string]any{"loadBalancer": map[string]any{"ingress": list}}
	}
	body, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("apply the addresses of service %s/%s: %w", namespace, name, err)
	}
	err = c.do(ctx, request{
		method: http.MethodPatch,
		path:   "/api/v1/namespaces/" + url.PathEscape(namespace) + "/services/" + url.PathEscape(name) + "/status",
		query:  url.Values{"fieldManager": {FieldManager}, "force": {"true"}}, contentType: mimeApplyPatch, body: body,
	}, nil)
	if err != nil {
		return fmt.Errorf("apply the addresses of service %s/%s: %w", namespace, name, err)
	}
	return nil
}
