package membership

import (
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// restart checks a node that has joined before. An error that a new join would fix is a staleError.
func (j *joiner) restart(ctx context.Context, rec *Record) (*Record, error) {
	if rec.NodeName != j.Config.NodeName {
		return nil, stale("%s belongs to node %s of the cluster at %s, but the config sets the node name %s",
			j.Data.Dir, rec.NodeName, rec.Server, j.Config.NodeName).
			Hintf("nodeName: %s    # keep the old name", rec.NodeName).Hint("# or join with the new name:").With(joinHint(rec.Server))
	}
	ca, err := os.ReadFile(j.Data.ClusterCA())
	if err != nil {
		return nil, stale("the CA certificate of the cluster at %s is missing: %w", rec.Server, err).With(joinHint(rec.Server))
	}
	if exists(j.Data.BootstrapKubeconfig()) {
		return j.unfinished(ctx, rec, ca)
	}
	return j.byCertificate(ctx, rec, ca)
}

// unfinished continues a join after which the node did not get a certificate yet.
func (j *joiner) unfinished(ctx context.Context, rec *Record, ca []byte) (*Record, error) {
	path := j.Data.BootstrapKubeconfig()
	cl, err := kubeapi.LoadCluster(path)
	if err != nil {
		return nil, stale("the node has no certificate for the cluster at %s yet: %w", rec.Server, err).With(joinHint(rec.Server))
	}
	cl.Server, cl.CA = rec.Server, ca
	version, refusal, err := j.queryOnce(ctx, cl, func(context.Context, *kubeapi.Client) error { return nil })
	if err != nil {
		return j.tolerateUnreachable(rec, err)
	}
	if refusal == nil {
		if err := checkSkew(j, version, rec.Server); err != nil {
			return nil, err
		}
		return rec, nil
	}
	// The join may be complete: the node may have stopped after it got its certificate and before it removed this file.
	if _, leaf, err := clientCertificate(j.Data); err == nil && invalid(j, leaf) == "" {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		return j.byCertificate(ctx, rec, ca)
	}
	return nil, stale("the node has no certificate for the cluster at %s yet, and its bootstrap token was rejected because it has expired or was deleted: %w",
		rec.Server, refusal).
		With(joinHint(rec.Server))
}

func (j *joiner) byCertificate(ctx context.Context, rec *Record, ca []byte) (*Record, error) {
	text, leaf, err := clientCertificate(j.Data)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, stale("the node has no certificate for the cluster at %s", rec.Server).With(joinHint(rec.Server))
	}
	if err != nil {
		return nil, stale("the node's certificate for the cluster at %s is unusable: %w", rec.Server, err).With(joinHint(rec.Server))
	}
	if what := invalid(j, leaf); what != "" {
		return nil, j.hintClock(ctx, rec.Server, stale("the node's certificate for the cluster at %s %s", rec.Server, what), joinHint(rec.Server))
	}
	var there bool
	uid := ""
	version, refusal, err := j.queryOnce(ctx, kubeapi.Cluster{Server: rec.Server, CA: ca, CertPEM: text, KeyPEM: text},
		func(ctx context.Context, c *kubeapi.Client) error {
			node, err := c.Node(ctx, rec.NodeName)
			if node != nil {
				there, uid = true, string(node.UID)
			}
			return err
		})
	switch {
	case err != nil:
		return j.tolerateUnreachable(rec, err)
	case refusal != nil:
		return nil, stale("the cluster at %s rejects the certificate of node %s: %w", rec.Server, rec.NodeName, refusal).
			With(joinHint(rec.Server))
	case !there && rec.NodeUID != "":
		return nil, stale("the Node object %s was deleted from the cluster at %s: join again with a token", rec.NodeName, rec.Server).
			With(joinHint(rec.Server))
	}
	if err := checkSkew(j, version, rec.Server); err != nil {
		return nil, err
	}
	if what := j.clockFault(rec.Server); what != "" {
		j.Log.Warn(what)
	}
	if there && uid != rec.NodeUID {
		rec.NodeUID = uid
		if err := rec.Save(j.Data); err != nil {
			return nil, errdefs.Class(errdefs.ErrPreflight, err)
		}
	}
	return rec, nil
}

// queryOnce requests the version and calls more, without retries. refusal is set if the server rejects the client's
// credentials.
func (j *joiner) queryOnce(ctx context.Context, cl kubeapi.Cluster, more func(context.Context, *kubeapi.Client) error) (version string, refusal, err error) {
	err = j.query(ctx, cl, true, func(ctx context.Context, c *kubeapi.Client) (err error) {
		if version, err = c.Version(ctx); err == nil {
			err = more(ctx, c)
		}
		if refused(err) {
			refusal, err = err, nil
		}
		return err
	})
	return version, refusal, err
}

// tolerateUnreachable lets the node start while its control plane is unreachable. It returns all other errors.
func (j *joiner) tolerateUnreachable(rec *Record, err error) (*Record, error) {
	var authority x509.UnknownAuthorityError
	switch {
	case errors.As(err, new(*unreachableError)):
		j.Log.WithField("server", rec.Server).Warnf("the control plane is unreachable; starting the node anyway: %v", err)
		return rec, nil
	case errors.As(err, &authority):
		return nil, errdefs.Preflight("the API server at %s has a certificate from a different CA than when the node joined: "+
			"the cluster was rebuilt, or there may be a man in the middle: %w", rec.Server, authority).
			Hint("# if the cluster was rebuilt, delete the node's data and join again:").With(otherDataHint(j)).With(joinHint(rec.Server))
	}
	return nil, err
}
