package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/clusterjoin"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/preflight"
)

// JoinToken is what another node needs to join this one's cluster. Token is a secret.
type JoinToken struct {
	// Server is the API server's URL, https://HOST:PORT, as others reach it.
	Server string `json:"server"`
	// Token is "ID.SECRET"; of no use after Expires.
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
	// CACertHashes pin the cluster's authority: sha256: and the digest of its public key.
	CACertHashes []string `json:"caCertHashes"`
	// NodeName is the only node that may join with the token; empty for any new name.
	NodeName string `json:"nodeName,omitempty"`
	// Reusable is set if several nodes may join with the token.
	Reusable bool `json:"reusable,omitempty"`
}

// JoinTokenOptions are for CreateJoinToken. A token is for one node unless Reusable is set.
type JoinTokenOptions struct {
	// TTL is how long nodes can join with the token.
	TTL         time.Duration
	Description string
	// NodeName binds the token to the name of a Node object. Such a token can replace a node of that name that has stopped; no
	// other token can join under the name of a Node object that exists.
	NodeName string
	// Reusable lets several nodes join with the token. It excludes NodeName.
	Reusable bool
}

// CreateJoinToken makes a bootstrap token in the cluster of this node, whose own control plane must run and be there for
// others (config.NodeConfig.Serves).
//
// Errors: of class ErrConfig where the node serves no others; ErrNotRunning where it was never started.
func (n *Node) CreateJoinToken(ctx context.Context, o JoinTokenOptions) (*JoinToken, error) {
	if err := o.check(n.Config().NodeName); err != nil {
		return nil, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("make a bootstrap token: %w", err))
	}
	if !n.Config().Serves() {
		return nil, n.servesNobody()
	}
	host, err := serverHost(ctx, n.Config())
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(n.data.ClusterCA())
	if err != nil {
		return nil, n.neverStarted(err)
	}
	t := &JoinToken{
		Server:  "https://" + net.JoinHostPort(host, strconv.Itoa(n.Config().API.Port)),
		Expires: time.Now().Add(o.TTL).Truncate(time.Second), NodeName: o.NodeName, Reusable: o.Reusable,
	}
	if t.CACertHashes, err = clusterjoin.Hashes(authority); err != nil {
		return nil, fmt.Errorf("read %s: %w", n.data.ClusterCA(), err)
	}
	api, err := n.adminAPI()
	if err != nil {
		return nil, err
	}
	defer api.Close()
	t.Token, err = api.CreateBootstrapToken(ctx, kubeapi.BootstrapToken{
		Expires: t.Expires, Description: o.Description, NodeName: o.NodeName, SingleUse: !o.Reusable,
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (o JoinTokenOptions) check(controlPlane string) error {
	switch {
	case o.NodeName == "":
		return nil
	case o.Reusable:
		return fmt.Errorf("a token for node %s cannot be reusable", o.NodeName)
	case o.NodeName == controlPlane:
		return fmt.Errorf("%s is the node of the control plane", o.NodeName)
	case !config.ValidNodeName(o.NodeName):
		return fmt.Errorf("invalid node name %q: want a DNS name in lower case", o.NodeName)
	}
	return nil
}

// JoinTokens returns the cluster's bootstrap tokens without their secrets, the one that expires last at the end.
func (n *Node) JoinTokens(ctx context.Context) ([]kubeapi.BootstrapToken, error) {
	api, err := n.adminAPI()
	if err != nil {
		return nil, err
	}
	defer api.Close()
	return api.BootstrapTokens(ctx)
}

// DeleteJoinToken removes a bootstrap token, named by its ID or written out. Nodes that joined with it stay.
//
// Errors: of class ErrConfig when there is none. No error holds the token's secret.
func (n *Node) DeleteJoinToken(ctx context.Context, idOrToken string) error {
	const list = "rootlessnode token list"
	id, ok := kubeapi.BootstrapTokenID(idOrToken)
	if !ok {
		return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, errors.New("delete bootstrap token: want its ID, six of a-z and 0-9")), list)
	}
	api, err := n.adminAPI()
	if err != nil {
		return err
	}
	defer api.Close()
	deleted, err := api.DeleteBootstrapToken(ctx, id)
	if err == nil && !deleted {
		return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, fmt.Errorf("delete bootstrap token %s: there is none", id)), list)
	}
	return err
}

// adminAPI speaks to the API server of the node's own control plane as its administrator.
func (n *Node) adminAPI() (*kubeapi.Client, error) {
	if n.Config().Joins() {
		return nil, errdefs.WithHint(errdefs.Class(errdefs.ErrConfig,
			errors.New("bootstrap tokens are the control plane's, and this node is a worker")), "# on the cluster's first node:\nrootlessnode token create")
	}
	if _, err := os.Stat(n.Kubeconfig()); err != nil {
		return nil, n.neverStarted(err)
	}
	return kubeapi.New(n.Kubeconfig(), kubeapi.Options{Log: n.log})
}

func (n *Node) servesNobody() error {
	err := fmt.Errorf("the API server listens on %s, where other nodes cannot reach it", n.Config().API.BindAddress)
	hint := fmt.Sprintf("rootlessnode --name %[1]s down\nrootlessnode --name %[1]s up --set api.bindAddress=ADDRESS", n.Config().Name)
	switch {
	case n.Config().Joins():
		err, hint = errors.New("this node is a worker: it has no cluster of its own"), "# on the cluster's first node:\nrootlessnode token create"
	case !n.running():
		err = errors.New("the node does not run, or not for others")
		hint = fmt.Sprintf("rootlessnode --name %s up --set api.bindAddress=ADDRESS", n.Config().Name)
	}
	return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, fmt.Errorf("make a bootstrap token: %w", err)), hint)
}

func (n *Node) neverStarted(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errdefs.WithHintf(errdefs.Class(errdefs.ErrNotRunning, fmt.Errorf("node %q was never started: it has no cluster", n.Config().Name)),
			"rootlessnode --name %s up", n.Config().Name)
	}
	return err
}

// serverHost is the address by which other hosts reach the API server: where it listens, and if that is everywhere, the
// node's.
func serverHost(ctx context.Context, c *config.NodeConfig) (string, error) {
	if ip, err := netip.ParseAddr(c.API.BindAddress); err == nil && !ip.IsUnspecified() {
		return c.API.BindAddress, nil
	}
	ip, err := preflight.NodeAddress(ctx, c)
	if err != nil {
		return "", errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, err), "rootlessnode up --set api.bindAddress=ADDRESS")
	}
	return ip.String(), nil
}
