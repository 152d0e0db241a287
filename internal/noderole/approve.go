package noderole

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
)

// approver decides which nodes may join the cluster, and which names and addresses the certificates of kubelets may
// have. The controller manager's approver cannot do this: it does not know which names are taken, which nodes were
// removed, or the addresses that belong in a serving certificate.
type approver struct {
	env    component.Env
	log    logrus.FieldLogger
	client clientFunc
	// claims maps the name of a node to the UID of the certificate request for which the name is reserved. It survives a
	// restart of the unit.
	claims map[string]string
}

// Run decides on certificate requests until ctx ends or a request could not be decided for some time.
func (a *approver) Run(ctx context.Context, ready func()) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	policy, err := newCSRPolicy(a.env)
	if err != nil {
		return err
	}
	ready()
	var tokens sync.WaitGroup
	defer tokens.Wait()
	// A request that could not be decided waits until the unit restarts. The other requests are decided in the
	// meantime.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var again *time.Timer
	defer func() {
		if again != nil {
			again.Stop()
		}
	}()
	used := make(chan struct{}, 1)
	tokens.Go(func() { a.followTokens(ctx, c, used) })
	return c.WatchCertificateRequests(ctx, func(csr kubeapi.CSR) {
		err := a.decide(ctx, c, policy, csr)
		if csr.Pending() {
			select {
			case used <- struct{}{}:
			default: // a check is already pending
			}
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		err = fmt.Errorf("decide on certificate request %s: %w", csr.Name, err)
		a.log.WithError(err).Warn("certificate request not decided yet")
		if again == nil {
			again = time.AfterFunc(undecidedPause, func() { cancel(err) })
		}
	})
}

// undecidedPause is how long the approver waits before it retries a request that could not be decided.
const undecidedPause = 2 * time.Second

// decide handles one request at a time, so that the second of two requests for the same name sees the result of the
// first.
func (a *approver) decide(ctx context.Context, c *kubeapi.Client, policy *csrPolicy, csr kubeapi.CSR) error {
	if csr.Signer != kubeapi.SignerKubeletClient && csr.Signer != kubeapi.SignerKubeletServing {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.env.Config.Timeouts.Health.D())
	defer cancel()
	if !csr.Pending() {
		return a.approvedElsewhere(ctx, c, csr)
	}
	p, err := parseNodeRequest(csr)
	if errors.Is(err, errOtherApprover) {
		return nil
	}
	var f *facts
	if err == nil {
		if f, err = a.gather(ctx, c, p); err != nil {
			return err
		}
		err = policy.check(p, f)
	}
	log := a.log.WithField("node", p.node).WithField("request", csr.Name).WithField("signer", csr.Signer)
	if err != nil {
		log.WithError(err).Warn("certificate request denied")
		return c.DecideCSR(ctx, csr, false, "RootlessNodeRefused", err.Error())
	}
	if err := a.prepareApproval(ctx, c, p, f); err != nil {
		return err
	}
	log.Info("certificate request approved")
	if err := c.DecideCSR(ctx, csr, true, "RootlessNodeApproved", "the name, addresses and usages are valid"); err != nil {
		return err
	}
	delete(a.claims, p.node)
	return nil
}

// gather reads the cluster state that a decision about the request depends on: nodes, token and Lease.
func (a *approver) gather(ctx context.Context, c *kubeapi.Client, p nodeRequest) (*facts, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	f := &facts{nodes: nodes, now: time.Now(), claimed: a.claims[p.node] == p.csr.UID}
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

// prepareApproval prepares the cluster for a node's first certificate. A single-use token is bound to the name first.
// The Node object is created here because nodes must not create any. If the node replaces another one, its Node object
// stays and its Lease is renewed, so that the name counts as taken for the next request.
func (a *approver) prepareApproval(ctx context.Context, c *kubeapi.Client, p nodeRequest, f *facts) error {
	if p.kind != byToken {
		return nil
	}
	a.claims[p.node] = p.csr.UID
	if f.token.SingleUse {
		if err := c.UseBootstrapToken(ctx, p.tokenID, p.node, f.now); err != nil {
			return err
		}
	}
	if node := f.node(p.node); node != nil {
		return errors.Join(c.RenewNodeLease(ctx, node, f.now), c.PatchNodeLabels(ctx, node.Name, missingRoles(node.Labels, roleWorker), nil))
	}
	return createNode(ctx, c, p.node)
}

func createNode(ctx context.Context, c *kubeapi.Client, name string) error {
	_, err := c.EnsureNode(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: missingRoles(nil, roleWorker)}})
	return err
}

// followTokens deletes each single-use token once its node has a certificate. It checks after each certificate request,
// and periodically while a used token remains.
func (a *approver) followTokens(ctx context.Context, c *kubeapi.Client, used <-chan struct{}) {
	for {
		waiting, err := a.deleteUsedTokens(ctx, c)
		if err != nil && ctx.Err() == nil {
			a.log.WithError(err).Warn("delete used bootstrap tokens")
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

// usedTokenPause is the interval between two checks of used tokens. A kubelet renews its Lease every ten seconds.
const usedTokenPause = 5 * time.Second

// deleteUsedTokens deletes each used single-use token whose node has renewed its Lease since, because a renewal needs
// the certificate. waiting reports whether other used tokens remain.
func (a *approver) deleteUsedTokens(ctx context.Context, c *kubeapi.Client) (waiting bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.env.Config.Timeouts.Health.D())
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
			a.log.WithField("node", t.UsedBy).WithField("token", t.ID).Info("deleting the bootstrap token, because the node has its certificate")
			_, err = c.DeleteBootstrapToken(ctx, t.ID)
		}
		errs = append(errs, err)
	}
	return waiting, errors.Join(errs...)
}

// approvedElsewhere creates the Node object for a certificate request that an administrator approved, before the
// certificate is signed.
func (a *approver) approvedElsewhere(ctx context.Context, c *kubeapi.Client, csr kubeapi.CSR) error {
	if !csr.Approved || len(csr.Certificate) > 0 || csr.Signer != kubeapi.SignerKubeletClient || slices.Contains(csr.Groups, pki.GroupNodes) {
		return nil
	}
	req, err := parseRequest(csr.PEM)
	if err != nil {
		return nil // the signer refuses the request too
	}
	name, ok := strings.CutPrefix(req.Subject.CommonName, pki.NodeUser(""))
	if !ok || !validNodeName(name) {
		return nil
	}
	return createNode(ctx, c, name)
}
