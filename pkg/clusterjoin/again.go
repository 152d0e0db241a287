package clusterjoin

import (
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
)

// again lets a node start that has joined before. What a new join would mend is a staleError.
func (j *joiner) again(ctx context.Context, rec *Record) (*Record, error) {
	if rec.NodeName != j.Config.NodeName {
		return nil, errdefs.WithHintf(j.hintToken(stale("%s holds the data of node %s of the cluster at %s, and the config names it %s",
			j.Data.Dir, rec.NodeName, rec.Server, j.Config.NodeName), rec.Server), "nodeName: %s    # stays what it was", rec.NodeName)
	}
	ca, err := os.ReadFile(j.Data.ClusterCA())
	if err != nil {
		return nil, j.hintToken(stale("the authority of the cluster at %s was lost: %w", rec.Server, err), rec.Server)
	}
	if exists(j.Data.BootstrapKubeconfig()) {
		return j.unfinished(ctx, rec, ca)
	}
	return j.byCertificate(ctx, rec, ca)
}

// unfinished goes on with a join whose node has got no certificate yet.
func (j *joiner) unfinished(ctx context.Context, rec *Record, ca []byte) (*Record, error) {
	path := j.Data.BootstrapKubeconfig()
	cl, err := kubeapi.LoadCluster(path)
	if err != nil {
		return nil, j.hintToken(stale("the node has no certificate of the cluster at %s yet: %w", rec.Server, err), rec.Server)
	}
	cl.Server, cl.CA = rec.Server, ca
	version, no, err := j.askOnce(ctx, cl, func(context.Context, *kubeapi.Client) error { return nil })
	if err != nil {
		return j.mayBeAway(rec, err)
	}
	if no == nil {
		if err := j.fits(version, rec.Server); err != nil {
			return nil, err
		}
		return rec, nil
	}
	// It may be done with: the node's end came between its certificate and the removal of this.
	if _, leaf, err := clientCertificate(j.Data); err == nil && j.invalid(leaf) == "" {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		return j.byCertificate(ctx, rec, ca)
	}
	return nil, j.hintToken(stale("the node has no certificate of the cluster at %s yet, and its bootstrap token is refused: it has expired or was deleted: %w",
		rec.Server, no), rec.Server)
}

func (j *joiner) byCertificate(ctx context.Context, rec *Record, ca []byte) (*Record, error) {
	text, leaf, err := clientCertificate(j.Data)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, j.hintToken(stale("the node has no certificate of the cluster at %s", rec.Server), rec.Server)
	}
	if err != nil {
		return nil, j.hintToken(stale("the node's certificate of the cluster at %s cannot be used: %w", rec.Server, err), rec.Server)
	}
	if what := j.invalid(leaf); what != "" {
		return nil, j.hintClock(ctx, rec.Server, stale("the node's certificate of the cluster at %s %s", rec.Server, what), joinHint(rec.Server))
	}
	var there bool
	uid := ""
	version, no, err := j.askOnce(ctx, kubeapi.Cluster{Server: rec.Server, CA: ca, CertPEM: text, KeyPEM: text},
		func(ctx context.Context, c *kubeapi.Client) error {
			node, err := c.Node(ctx, rec.NodeName)
			if node != nil {
				there, uid = true, string(node.UID)
			}
			return err
		})
	switch {
	case err != nil:
		return j.mayBeAway(rec, err)
	case no != nil:
		return nil, j.hintToken(stale("the cluster at %s does not know the certificate of node %s: %w", rec.Server, rec.NodeName, no), rec.Server)
	case !there && rec.NodeUID != "":
		return nil, j.hintToken(stale("the Node object %s was deleted from the cluster at %s: it joins again with a token", rec.NodeName, rec.Server), rec.Server)
	}
	if err := j.fits(version, rec.Server); err != nil {
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

// askOnce asks the version and more. no is the server's refusal of whoever asks.
func (j *joiner) askOnce(ctx context.Context, cl kubeapi.Cluster, more func(context.Context, *kubeapi.Client) error) (version string, no, err error) {
	err = j.ask(ctx, cl, true, func(ctx context.Context, c *kubeapi.Client) (err error) {
		if version, err = c.Version(ctx); err == nil {
			err = more(ctx, c)
		}
		if refused(err) {
			no, err = err, nil
		}
		return err
	})
	return version, no, err
}

// mayBeAway lets the node start while its control plane cannot be reached, and says what is the matter otherwise.
func (j *joiner) mayBeAway(rec *Record, err error) (*Record, error) {
	var authority x509.UnknownAuthorityError
	switch {
	case errors.As(err, new(*unreachableError)):
		j.Log.WithField("server", rec.Server).Warnf("the node starts without its control plane: %v", err)
		return rec, nil
	case errors.As(err, &authority):
		return nil, errdefs.WithHint(fault("the API server at %s is certified by another authority than when the node joined: "+
			"the cluster was rebuilt, or somebody is in between: %w", rec.Server, authority),
			"If the cluster was rebuilt, what this node has of it is void, and it joins anew:\n"+j.otherDataHint()+"\n"+joinHint(rec.Server))
	}
	return nil, err
}
