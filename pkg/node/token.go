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
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/membership"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// JoinToken is the data that another node needs to join the cluster of this node. Token is a secret.
type JoinToken struct {
	// Server is the URL of the API server for other hosts, https://HOST:PORT.
	Server string `json:"server"`
	// Token is the bootstrap token, "ID.SECRET". It is valid until Expires.
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
	// CACertHashes pin the cluster's certificate authority: "sha256:" and the digest of its public key.
	CACertHashes []string `json:"caCertHashes"`
	// NodeName is the only node name that can join with the token; empty for any new name.
	NodeName string `json:"nodeName,omitempty"`
	// Reusable is set if several nodes can join with the token.
	Reusable bool `json:"reusable,omitempty"`
}

// JoinTokenOptions are options for CreateJoinToken. A token is valid for one node unless Reusable is set.
type JoinTokenOptions struct {
	// TTL is the lifetime of the token.
	TTL time.Duration
	// Description is a free text that JoinTokens returns.
	Description string
	// NodeName binds the token to the name of a Node object. Such a token can replace a stopped node of that name; no
	// other token can join under the name of an existing Node object.
	NodeName string
	// Reusable allows several nodes to join with the token. It cannot be combined with NodeName.
	Reusable bool
}

// CreateJoinToken creates a bootstrap token in the cluster of this node. The node must run the control plane, and other nodes must be
// able to reach it (config.NodeConfig.Serves).
//
// Errors: of class errdefs.ErrConfig if o is invalid or other nodes cannot join this node; errdefs.ErrNotRunning if the node was never
// started.
func (n *Node) CreateJoinToken(ctx context.Context, o JoinTokenOptions) (*JoinToken, error) {
	if err := o.check(n.Config().NodeName); err != nil {
		return nil, errdefs.Config("create bootstrap token: %w", err)
	}
	if !n.Config().Serves() {
		return nil, servesNoOthers(n)
	}
	host, err := serverHost(ctx, n.Config())
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(n.data.ClusterCA())
	if err != nil {
		return nil, neverStarted(n, err)
	}
	t := &JoinToken{
		Server:  "https://" + net.JoinHostPort(host, strconv.Itoa(n.Config().API.Port)),
		Expires: time.Now().Add(o.TTL).Truncate(time.Second), NodeName: o.NodeName, Reusable: o.Reusable,
	}
	if t.CACertHashes, err = membership.Hashes(authority); err != nil {
		return nil, fmt.Errorf("read %s: %w", n.data.ClusterCA(), err)
	}
	api, err := adminAPI(n)
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
		return fmt.Errorf("%s is the control plane node itself", o.NodeName)
	case !config.ValidNodeName(o.NodeName):
		return fmt.Errorf("invalid node name %q: must be a lower-case DNS name", o.NodeName)
	}
	return nil
}

// JoinTokens returns the cluster's bootstrap tokens without their secrets, ordered by expiry, the latest last.
//
// Errors: of class errdefs.ErrConfig if this node is a worker; errdefs.ErrNotRunning if the node was never started.
func (n *Node) JoinTokens(ctx context.Context) ([]BootstrapToken, error) {
	api, err := adminAPI(n)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	return api.BootstrapTokens(ctx)
}

// DeleteJoinToken deletes a bootstrap token. idOrToken is the token or its ID. Nodes that joined with the token stay in the cluster.
//
// Errors: of class errdefs.ErrConfig if there is no such token or this node is a worker; errdefs.ErrNotRunning if the node was never
// started. Errors do not contain the token's secret.
func (n *Node) DeleteJoinToken(ctx context.Context, idOrToken string) error {
	id, ok := kubeapi.BootstrapTokenID(idOrToken)
	if !ok {
		return errdefs.Config("delete bootstrap token: invalid token ID: must be six characters of a-z and 0-9").Do(errdefs.ListTokens)
	}
	api, err := adminAPI(n)
	if err != nil {
		return err
	}
	defer api.Close()
	deleted, err := api.DeleteBootstrapToken(ctx, id)
	if err == nil && !deleted {
		return errdefs.Config("delete bootstrap token %s: not found", id).Do(errdefs.ListTokens)
	}
	return err
}

// adminAPI returns an administrator's client for the API server of the node's own control plane.
func adminAPI(n *Node) (*kubeapi.Client, error) {
	if n.Config().Joins() {
		return nil, errdefs.Config("this node is a worker: manage bootstrap tokens on the control plane node").
			Hint(onControlPlane).Do(errdefs.CreateToken)
	}
	if _, err := os.Stat(n.Kubeconfig()); err != nil {
		return nil, neverStarted(n, err)
	}
	return kubeapi.New(n.Kubeconfig(), kubeapi.Options{Log: n.log})
}

// servesNoOthers returns an error with the reason why no other node can join this node.
func servesNoOthers(n *Node) error {
	err := fmt.Errorf("the API server listens on %s, where other nodes cannot reach it", n.Config().API.BindAddress)
	hint := errdefs.Do(errdefs.Stop).Do(errdefs.Start, bindAddress)
	switch {
	case n.Config().Joins():
		err, hint = errors.New("this node is a worker: it does not run a control plane"), errdefs.Text(onControlPlane).Do(errdefs.CreateToken)
	case !isRunning(n):
		err = errors.New("the node is not running, or other nodes cannot join it")
		hint = errdefs.Do(errdefs.Start, bindAddress)
	}
	return errdefs.Config("create bootstrap token: %w", err).With(hint)
}

// Parts of hints.
const (
	onControlPlane = "# on the control plane node:"
	bindAddress    = "api.bindAddress=ADDRESS"
)

func neverStarted(n *Node, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errdefs.NotRunning("node %q was never started and has no cluster", n.Config().Name).Do(errdefs.Start)
	}
	return err
}

// serverHost returns the address by which other hosts reach the API server: its listen address, or the node's address if it
// listens on all addresses.
func serverHost(ctx context.Context, c *config.NodeConfig) (string, error) {
	if ip, err := netip.ParseAddr(c.API.BindAddress); err == nil && !ip.IsUnspecified() {
		return c.API.BindAddress, nil
	}
	ip, err := preflight.NodeAddress(ctx, c)
	if err != nil {
		return "", errdefs.Config("%w", err).Do(errdefs.Start, bindAddress)
	}
	return ip.String(), nil
}
