package clusterjoin

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	tokenapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
)

// refused tells that err is the server's word that it does not know, or does not serve, whoever asked.
func refused(err error) bool { return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) }

// byToken finds the cluster as kubeadm does:
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/#configmap-signing
func (j *joiner) byToken(ctx context.Context, rec *Record, w way) (*Record, error) {
	info, err := j.clusterInfo(ctx, kubeapi.Cluster{Server: w.server, Insecure: true})
	if err != nil {
		return nil, err
	}
	if err := j.verify(info, w); err != nil {
		return nil, err
	}
	found, err := kubeapi.ParseClusterInfo([]byte(info[tokenapi.KubeConfigKey]))
	if err != nil {
		return nil, errdefs.WithHint(fault("read the ConfigMap %s/%s of %s: %w", Namespace, ClusterInfo, w.server, err), otherWay)
	}
	if err := j.pinned(found.CA, w.server); err != nil {
		return nil, err
	}
	if err := j.knownAuthority(rec, found.CA, w.server); err != nil {
		return nil, err
	}
	if w.server != found.Server {
		j.Log.Debugf("the cluster names itself %s, and the node goes by %s", found.Server, w.server)
	}
	// From here on the server is who it ought to be, and only now it may see the token.
	again, err := j.clusterInfo(ctx, kubeapi.Cluster{Server: w.server, CA: found.CA})
	if err != nil {
		return nil, err
	}
	if again[tokenapi.KubeConfigKey] != info[tokenapi.KubeConfigKey] {
		return nil, errdefs.WithHint(fault("the API server at %s told another thing once its certificate was verified: somebody is in between, "+
			"or the cluster's authority is being replaced", w.server), "rootlessnode up    # once more; if it stays so, look at the network")
	}
	w.creds = kubeapi.Cluster{Server: w.server, CA: found.CA, BearerToken: w.token.id + "." + w.token.secret}
	cluster, err := j.examine(ctx, w.creds, "bootstrap token "+w.token.id)
	if err != nil {
		return nil, err
	}
	return j.keep(cluster, w)
}

const otherWay = "rootlessnode up --bootstrap-kubeconfig FILE    # joins a cluster without that"

// clusterInfo reads the public ConfigMap that says which cluster this is.
func (j *joiner) clusterInfo(ctx context.Context, cl kubeapi.Cluster) (map[string]string, error) {
	var (
		info map[string]string
		no   error
	)
	err := j.ask(ctx, cl, false, func(ctx context.Context, c *kubeapi.Client) (err error) {
		info, err = c.ConfigMap(ctx, Namespace, ClusterInfo)
		if refused(err) {
			no, err = err, nil
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case no != nil:
		return nil, errdefs.WithHint(fault("the cluster at %s does not show its ConfigMap %s/%s to everyone, which joining by token needs: %w",
			cl.Server, Namespace, ClusterInfo, no), otherWay)
	case info == nil:
		return nil, errdefs.WithHint(fault("the cluster at %s has no ConfigMap %s/%s, which joining by token needs",
			cl.Server, Namespace, ClusterInfo), otherWay)
	}
	return info, nil
}

// verify proves by the token's secret that whoever wrote info knows it too.
func (j *joiner) verify(info map[string]string, w way) error {
	signature := info[tokenapi.JWSSignatureKeyPrefix+w.token.id]
	if signature == "" {
		return j.hintToken(fault("the cluster at %s does not know the bootstrap token %s: it has expired, was deleted, or is another cluster's",
			w.server, w.token.id), w.server)
	}
	if !jws.DetachedTokenIsValid(signature, info[tokenapi.KubeConfigKey], w.token.id, w.token.secret) {
		return j.hintToken(fault("the cluster at %s knows a bootstrap token %s with another secret: it is mistyped, or somebody is in between",
			w.server, w.token.id), w.server)
	}
	return nil
}

// pinned holds the authority against the pins of the config. All of a bundle must be named: any of it may certify a server.
func (j *joiner) pinned(ca []byte, server string) error {
	found, err := Hashes(ca)
	if err != nil {
		return errdefs.WithHint(fault("read the authority of %s: %w", server, err), otherWay)
	}
	var wanted []string
	for _, pin := range j.Config.Join.CACertHashes {
		wanted = append(wanted, strings.ToLower(pin))
	}
	if len(wanted) == 0 {
		j.Log.WithField("server", server).Warnf("no --ca-cert-hash: the cluster is trusted because it knows the token, as everyone does who had "+
			"that before; its authority is %s", strings.Join(found, ", "))
		return nil
	}
	if strangers := slices.DeleteFunc(slices.Clone(found), func(h string) bool { return slices.Contains(wanted, h) }); len(strangers) > 0 {
		return errdefs.WithHint(fault("the cluster at %s has another authority than was named: found %s, wanted %s",
			server, strings.Join(strangers, ", "), strings.Join(wanted, ", ")),
			"rootlessnode token create    # on the cluster's first node: prints the right --ca-cert-hash\n"+
				"If it prints the one that was wanted, somebody is between this host and "+server+".")
	}
	return nil
}

// knownAuthority: a data dir belongs to one cluster, which its authority's key stands for.
func (j *joiner) knownAuthority(rec *Record, ca []byte, server string) error {
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
	return errdefs.WithHint(fault("the cluster at %s is not the one that the node joined: its authority is another, so it was rebuilt. %s holds the data of the old one",
		server, j.Data.Dir), j.otherDataHint())
}

// examine asks with the credentials whether node and cluster fit together, and what the cluster's nodes agree on.
func (j *joiner) examine(ctx context.Context, cl kubeapi.Cluster, who string) (*Cluster, error) {
	var (
		version string
		data    map[string]string
		no      error
	)
	err := j.ask(ctx, cl, false, func(ctx context.Context, c *kubeapi.Client) (err error) {
		if version, err = c.Version(ctx); refused(err) {
			no = err
			return nil
		}
		if err != nil {
			return err
		}
		data, err = c.ConfigMap(ctx, Namespace, ClusterConfig)
		if apierrors.IsForbidden(err) { // a foreign cluster, whose roles do not name it
			return nil
		}
		if apierrors.IsUnauthorized(err) {
			no = err
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if no != nil {
		return nil, j.hintToken(fault("the cluster at %s refuses the %s: it has expired or was deleted, or is not for authentication: %w",
			cl.Server, who, no), cl.Server)
	}
	if err := j.fits(version, cl.Server); err != nil {
		return nil, err
	}
	if what := j.clockFault(cl.Server); what != "" {
		if j.ahead > 0 {
			return nil, errdefs.WithHint(fault("%s: certificates from there would not be valid here yet", what), setClock)
		}
		j.Log.Warnf("%s: certificates from there end early here", what)
	}
	if data == nil {
		return nil, nil
	}
	cluster, err := ParseCluster(data)
	if err != nil {
		return nil, errdefs.WithHintf(fault("read the ConfigMap %s/%s of %s: %w", Namespace, ClusterConfig, cl.Server, err),
			"kubectl -n %s get configmap %s -o yaml    # with the cluster's administrator kubeconfig", Namespace, ClusterConfig)
	}
	return cluster, nil
}
