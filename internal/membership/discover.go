package membership

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	tokenapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// refused reports whether the server rejected the client's credentials or denied the request.
func refused(err error) bool { return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) }

// byToken discovers the cluster like kubeadm:
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/#configmap-signing
func (j *joiner) byToken(ctx context.Context, rec *Record, w joinMethod) (*Record, error) {
	info, err := j.clusterInfo(ctx, kubeapi.Cluster{Server: w.server, Insecure: true})
	if err != nil {
		return nil, err
	}
	if err := j.verify(info, w); err != nil {
		return nil, err
	}
	found, err := kubeapi.ParseClusterInfo([]byte(info[tokenapi.KubeConfigKey]))
	if err != nil {
		return nil, errdefs.Preflight("read the ConfigMap %s/%s of %s: %w", Namespace, ClusterInfo, w.server, err).
			With(bootstrapKubeconfigHint())
	}
	if err := checkPins(j, found.CA, w.server); err != nil {
		return nil, err
	}
	if err := j.checkAuthority(rec, found.CA, w.server); err != nil {
		return nil, err
	}
	if w.server != found.Server {
		j.Log.Debugf("the cluster's own server URL is %s; using %s", found.Server, w.server)
	}
	// The server is verified from here on, so the token can be sent to it.
	again, err := j.clusterInfo(ctx, kubeapi.Cluster{Server: w.server, CA: found.CA})
	if err != nil {
		return nil, err
	}
	if again[tokenapi.KubeConfigKey] != info[tokenapi.KubeConfigKey] {
		return nil, errdefs.Preflight("the API server at %s returned different cluster information after its certificate was verified: possible man in the middle, "+
			"or the cluster's CA is being rotated", w.server).
			With(errdefs.Do(errdefs.Start).Note("try again; if it persists, check the network"))
	}
	w.creds = kubeapi.Cluster{Server: w.server, CA: found.CA, BearerToken: w.token.id + "." + w.token.secret}
	cluster, err := j.examine(ctx, w.creds, "bootstrap token "+w.token.id)
	if err != nil {
		return nil, err
	}
	return j.save(cluster, w)
}

func bootstrapKubeconfigHint() errdefs.Hint {
	return errdefs.Do(errdefs.Start, "join.bootstrapKubeconfig=FILE").Note("joins without a token")
}

// clusterInfo reads the public ConfigMap that describes the cluster.
func (j *joiner) clusterInfo(ctx context.Context, cl kubeapi.Cluster) (map[string]string, error) {
	var (
		info    map[string]string
		refusal error
	)
	err := j.query(ctx, cl, false, func(ctx context.Context, c *kubeapi.Client) (err error) {
		info, err = c.ConfigMap(ctx, Namespace, ClusterInfo)
		if refused(err) {
			refusal, err = err, nil
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case refusal != nil:
		return nil, errdefs.Preflight("the cluster at %s does not allow anonymous reads of the ConfigMap %s/%s, which are required to join with a token: %w",
			cl.Server, Namespace, ClusterInfo, refusal).With(bootstrapKubeconfigHint())
	case info == nil:
		return nil, errdefs.Preflight("the cluster at %s has no ConfigMap %s/%s, which is required to join with a token",
			cl.Server, Namespace, ClusterInfo).With(bootstrapKubeconfigHint())
	}
	return info, nil
}

// verify checks the signature of info with the token's secret, which proves that its author knows the secret.
func (j *joiner) verify(info map[string]string, w joinMethod) error {
	signature := info[tokenapi.JWSSignatureKeyPrefix+w.token.id]
	if signature == "" {
		return errdefs.Preflight("the cluster at %s does not know the bootstrap token %s: it has expired, was deleted, or belongs to another cluster",
			w.server, w.token.id).With(joinHint(w.server))
	}
	if !jws.DetachedTokenIsValid(signature, info[tokenapi.KubeConfigKey], w.token.id, w.token.secret) {
		return errdefs.Preflight("the cluster at %s has a bootstrap token %s with a different secret: the token is mistyped, or there may be a man in the middle",
			w.server, w.token.id).With(joinHint(w.server))
	}
	return nil
}

// checkPins compares the CA certificates with the pins of the config. Every certificate of a bundle must be pinned, because
// any of them can sign a server certificate.
func checkPins(j *joiner, ca []byte, server string) error {
	found, err := Hashes(ca)
	if err != nil {
		return errdefs.Preflight("read the CA certificates of %s: %w", server, err).With(bootstrapKubeconfigHint())
	}
	var wanted []string
	for _, pin := range j.Config.Join.CACertHashes {
		wanted = append(wanted, strings.ToLower(pin))
	}
	if len(wanted) == 0 {
		j.Log.WithField("server", server).Warnf("no --ca-cert-hash: the cluster is trusted only because it knows the token, as does every user who "+
			"had the token before; the hash of its CA is %s", strings.Join(found, ", "))
		return nil
	}
	if unexpected := slices.DeleteFunc(slices.Clone(found), func(h string) bool { return slices.Contains(wanted, h) }); len(unexpected) > 0 {
		return errdefs.Preflight("the CA of the cluster at %s does not match --ca-cert-hash: found %s, expected %s",
			server, strings.Join(unexpected, ", "), strings.Join(wanted, ", ")).
			With(errdefs.Do(errdefs.CreateToken).Note("on the cluster's first node: prints the correct hash").
				Text("If it prints the expected hash, there may be a man in the middle between this host and " + server + "."))
	}
	return nil
}

// checkAuthority checks that the data dir belongs to the cluster with this CA. A cluster is identified by the key of its CA.
func (j *joiner) checkAuthority(rec *Record, ca []byte, server string) error {
	if rec == nil {
		return nil
	}
	old, err := os.ReadFile(j.Data.ClusterCA())
	if errors.Is(err, os.ErrNotExist) || err == nil && sameAuthority(old, ca) {
		return nil
	}
	if err != nil {
		return errdefs.Class(errdefs.ErrPreflight, err)
	}
	return errdefs.Preflight("the cluster at %s is not the cluster that the node joined: it has a different CA, so it was rebuilt. %s contains the data of the old cluster",
		server, j.Data.Dir).With(otherDataHint(j))
}

// examine checks with the credentials whether node and cluster are compatible, and reads the settings that the nodes share.
func (j *joiner) examine(ctx context.Context, cl kubeapi.Cluster, who string) (*Cluster, error) {
	var (
		version string
		data    map[string]string
		refusal error
	)
	err := j.query(ctx, cl, false, func(ctx context.Context, c *kubeapi.Client) (err error) {
		if version, err = c.Version(ctx); refused(err) {
			refusal = err
			return nil
		}
		if err != nil {
			return err
		}
		data, err = c.ConfigMap(ctx, Namespace, ClusterConfig)
		if apierrors.IsForbidden(err) { // a foreign cluster, without a role for this ConfigMap
			return nil
		}
		if apierrors.IsUnauthorized(err) {
			refusal = err
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if refusal != nil {
		return nil, errdefs.Preflight("the cluster at %s rejects the %s: it has expired, was deleted, or cannot be used for authentication: %w",
			cl.Server, who, refusal).With(joinHint(cl.Server))
	}
	if err := checkSkew(j, version, cl.Server); err != nil {
		return nil, err
	}
	if what := j.clockFault(cl.Server); what != "" {
		if j.ahead > 0 {
			return nil, errdefs.Preflight("%s: its certificates would not be valid on this host yet", what).Hint(setClock)
		}
		j.Log.Warnf("%s: its certificates expire too early on this host", what)
	}
	if data == nil {
		return nil, nil
	}
	cluster, err := ParseCluster(data)
	if err != nil {
		return nil, errdefs.Preflight("read the ConfigMap %s/%s of %s: %w", Namespace, ClusterConfig, cl.Server, err).
			Hintf("kubectl -n %s get configmap %s -o yaml    # with the cluster's administrator kubeconfig", Namespace, ClusterConfig)
	}
	return cluster, nil
}
