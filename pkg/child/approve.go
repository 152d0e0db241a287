package child

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rootlessnode/rootlessnode/pkg/component/pki"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
)

// approveNodes decides who becomes a node of the cluster, and what kubelets may call themselves. The controller manager's
// approver does none of it: it knows neither which names are taken, nor which nodes were removed, nor the addresses of a
// serving certificate.
func (n *nodeRole) approveNodes(ctx context.Context, ready func()) error {
	c, err := n.client()
	if err != nil {
		return err
	}
	j, err := newJudge(n.env)
	if err != nil {
		return err
	}
	ready()
	var tokens sync.WaitGroup
	defer tokens.Wait()
	// A request that could not be decided waits for the unit's next start. The others are decided meanwhile.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var again *time.Timer
	defer func() {
		if again != nil {
			again.Stop()
		}
	}()
	used := make(chan struct{}, 1)
	tokens.Go(func() { n.followTokens(ctx, c, used) })
	return c.WatchCertificateRequests(ctx, func(csr kubeapi.CSR) {
		err := n.decide(ctx, c, j, csr)
		if csr.Pending() {
			select {
			case used <- struct{}{}:
			default: // it is to look already
			}
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		err = fmt.Errorf("decide on certificate request %s: %w", csr.Name, err)
		n.log.WithError(err).Warn("a node's certificate request waits")
		if again == nil {
			again = time.AfterFunc(undecidedPause, func() { cancel(err) })
		}
	})
}

// undecidedPause is how long a request waits that could not be decided.
const undecidedPause = 2 * time.Second

// decide handles one request at a time, so that of two requests for one name the second one sees what the first one got.
func (n *nodeRole) decide(ctx context.Context, c *kubeapi.Client, j *judge, csr kubeapi.CSR) error {
	if csr.Signer != kubeapi.SignerKubeletClient && csr.Signer != kubeapi.SignerKubeletServing {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeouts.Health.D())
	defer cancel()
	if !csr.Pending() {
		return n.approvedElsewhere(ctx, c, csr)
	}
	p, err := parsePetition(csr)
	if errors.Is(err, errNotOurs) {
		return nil
	}
	var f *facts
	if err == nil {
		if f, err = n.gather(ctx, c, p); err != nil {
			return err
		}
		err = j.judge(p, f)
	}
	log := n.log.WithField("node", p.node).WithField("request", csr.Name).WithField("signer", csr.Signer)
	if err != nil {
		log.WithError(err).Warn("certificate refused")
		return c.DecideCSR(ctx, csr, false, "RootlessNodeRefused", err.Error())
	}
	if err := n.prepareApproval(ctx, c, p, f); err != nil {
		return err
	}
	log.Info("certificate approved")
	if err := c.DecideCSR(ctx, csr, true, "RootlessNodeApproved", "name, addresses and uses are as they should be"); err != nil {
		return err
	}
	delete(n.claims, p.node)
	return nil
}

// gather reads what the cluster knows about the node and the token of a request.
func (n *nodeRole) gather(ctx context.Context, c *kubeapi.Client, p petition) (*facts, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	f := &facts{nodes: nodes, now: time.Now(), claimed: n.claims[p.node] == p.csr.UID}
	if p.kind != byToken {
		return f, nil
	}
	if f.token, err = c.BootstrapToken(ctx, p.tokenID); err != nil {
		return nil, err
	}
	if f.node(p.node) != nil {
		f.leaseRenewed, err = c.NodeLeaseRenewed(ctx, p.node)
	}
	return f, err
}

// prepareApproval makes the cluster ready for a node before it gets its first certificate. A token for one node is bound to the
// name now. The Node object is created here because nodes may not create any. That of a node which is replaced stays; its Lease
// is renewed, so that the name is taken again for the next request too.
func (n *nodeRole) prepareApproval(ctx context.Context, c *kubeapi.Client, p petition, f *facts) error {
	if p.kind != byToken {
		return nil
	}
	if n.claims == nil {
		n.claims = map[string]string{}
	}
	n.claims[p.node] = p.csr.UID
	if f.token.SingleUse {
		if err := c.UseBootstrapToken(ctx, p.tokenID, p.node, f.now); err != nil {
			return err
		}
	}
	if node := f.node(p.node); node != nil {
		return c.RenewNodeLease(ctx, node, f.now)
	}
	return createNode(ctx, c, p.node)
}

func createNode(ctx context.Context, c *kubeapi.Client, name string) error {
	_, err := c.EnsureNode(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	return err
}

// followTokens deletes each token for one node once that node has its certificate. It looks when a certificate was requested,
// and repeatedly while there is a token that a node has used.
func (n *nodeRole) followTokens(ctx context.Context, c *kubeapi.Client, used <-chan struct{}) {
	for {
		waiting, err := n.endTokens(ctx, c)
		if err != nil && ctx.Err() == nil {
			n.log.WithError(err).Warn("used bootstrap tokens are not deleted yet")
		}
		var again <-chan time.Time
		if waiting || err != nil {
			again = time.After(usedTokenPause)
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-used:
		}
	}
}

// usedTokenPause lies between two looks at the tokens that nodes have used. A kubelet renews its Lease every ten seconds.
const usedTokenPause = 5 * time.Second

// endTokens deletes the tokens for one node whose node has renewed its Lease since, which takes its certificate. waiting
// reports whether there are others that a node has used.
func (n *nodeRole) endTokens(ctx context.Context, c *kubeapi.Client) (waiting bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeouts.Health.D())
	defer cancel()
	tokens, err := c.BootstrapTokens(ctx)
	if err != nil {
		return false, err
	}
	var errs []error
	for _, t := range tokens {
		if !t.SingleUse || t.UsedBy == "" {
			continue
		}
		renewed, err := c.NodeLeaseRenewed(ctx, t.UsedBy)
		if err == nil && !renewed.After(t.UsedAt) {
			waiting = true
			continue
		}
		if err == nil {
			n.log.WithField("node", t.UsedBy).WithField("token", t.ID).Info("bootstrap token deleted: the node has its certificate")
			_, err = c.DeleteBootstrapToken(ctx, t.ID)
		}
		errs = append(errs, err)
	}
	return waiting, errors.Join(errs...)
}

// approvedElsewhere creates the Node object for a certificate that an administrator approved, before it is signed.
func (n *nodeRole) approvedElsewhere(ctx context.Context, c *kubeapi.Client, csr kubeapi.CSR) error {
	if !csr.Approved || len(csr.Certificate) > 0 || csr.Signer != kubeapi.SignerKubeletClient || slices.Contains(csr.Groups, pki.GroupNodes) {
		return nil
	}
	req, err := parseRequest(csr.PEM)
	if err != nil {
		return nil // the signer refuses it as well
	}
	name, ok := strings.CutPrefix(req.Subject.CommonName, pki.NodeUser(""))
	if !ok || !validNodeName(name) {
		return nil
	}
	return createNode(ctx, c, name)
}
