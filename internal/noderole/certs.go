package noderole

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

const (
	// certificatesInterval is the interval between two looks at the certificates. It is short, because a timer does not
	// advance while the machine is suspended, and because the clock may be changed.
	certificatesInterval = 10 * time.Second
	// restartTimeout limits the restart of one unit after a renewal.
	restartTimeout = 2 * time.Minute
)

// certificateStore has the node's certificates.
type certificateStore interface {
	// renew creates and renews certificates and everything that contains them.
	renew(now time.Time) (pki.Changes, error)
	// validities returns the validity of all certificates that the node uses, and the errors of those it cannot read.
	validities() ([]pki.Validity, error)
}

// certificateWatch renews the certificates of a running node, and reports whether they are valid.
type certificateWatch struct {
	store certificateStore
	// restart restarts a unit and waits until it is ready again. affected returns the units to restart after a renewal.
	restart  func(ctx context.Context, unit string) error
	affected func(pki.Changes) []string
	log      logrus.FieldLogger
}

// certificateWatch returns the watch of the node's certificates.
func (n *nodeRole) certificateWatch() *certificateWatch {
	w := &certificateWatch{
		store: joinedCertificates{n.data.AdminKubeconfig(), apiserver.ClusterName(n.env)}, log: n.log,
		restart: func(ctx context.Context, unit string) error {
			if err := n.group.Restart(unit); err != nil {
				return err
			}
			return n.group.WaitFor(ctx, unit, supervisor.Ready)
		},
		affected: func(changes pki.Changes) []string { return affectedUnits(n.env, n.components, changes) },
	}
	if component.EmbeddedControlPlane(n.cfg) {
		w.store = ownCertificates{n.env, n.data.AdminKubeconfig()}
	}
	return w
}

// Run implements conditionWatch.
func (w *certificateWatch) Run(ctx context.Context, report conditionReporter) error {
	tick := time.NewTicker(certificatesInterval)
	defer tick.Stop()
	for {
		changes, err := w.store.renew(time.Now())
		all, unreadable := w.store.validities()
		report.set(certificateCondition(all, errors.Join(err, unreadable), time.Now()))
		if !changes.None() {
			w.log.WithField("certificates", slices.Concat(changes.Renewed, changes.Created)).Info("certificates renewed")
			w.restartAll(ctx, w.affected(changes))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// restartAll restarts units one after the other, so that the others can be used meanwhile.
func (w *certificateWatch) restartAll(ctx context.Context, units []string) {
	for _, unit := range units {
		limited, cancel := context.WithTimeout(ctx, restartTimeout)
		w.log.Infof("restarting %s, so that it uses the renewed certificates", unit)
		if err := w.restart(limited, unit); err != nil && ctx.Err() == nil {
			w.log.WithError(err).Warnf("restart %s after the renewal of certificates", unit)
		}
		cancel()
	}
}

// affectedUnits returns the units that do not use the renewed certificates by themselves in time: those that read a
// renewed authority only when they start, and those whose former certificate is not valid any more, because they would
// use their open connections for some minutes.
func affectedUnits(env component.Env, components []component.Component, changes pki.Changes) []string {
	var units []string
	for _, c := range components {
		certificates, err := c.AllCertificates(env)
		late := err == nil && slices.ContainsFunc(certificates, func(c component.Certificate) bool { return slices.Contains(changes.Late, c.Name) })
		authority := slices.ContainsFunc(c.ReadsAuthoritiesOnce, func(name string) bool { return slices.Contains(changes.Renewed, name) })
		if c.Render != nil && (late || authority) {
			units = append(units, c.Name)
		}
	}
	if component.EmbeddedControlPlane(env.Config) && slices.Contains(changes.Renewed, pki.ClusterCA) {
		units = append(units, component.UnitAddons) // objects in the cluster contain the authority, for the API server and joining nodes
	}
	return units
}

// certificateCondition returns the condition for the certificates in all. fault is the error of renewing or reading them.
func certificateCondition(all []pki.Validity, fault error, now time.Time) status.Condition {
	var expired, due []string
	first := pki.Validity{}
	for _, v := range all {
		if first.NotAfter.IsZero() || v.NotAfter.Before(first.NotAfter) {
			first = v
		}
		switch {
		case now.After(v.NotAfter), now.Before(v.NotBefore):
			expired = append(expired, v.Name)
		case now.After(v.RenewAt()):
			due = append(due, v.Name)
		}
	}
	c := status.Condition{OK: len(expired) == 0, Reason: "Valid"}
	c.Message = fmt.Sprintf("the first of %d certificates expires at %s (%s)", len(all), first.NotAfter.UTC().Format(time.RFC3339), first.Name)
	switch {
	case !c.OK:
		c.Reason, c.Message = "Expired", "not valid now: "+strings.Join(expired, ", ")
	case fault != nil:
		c.Warning, c.Reason = true, "RenewalFailed"
	case len(due) > 0:
		c.Warning, c.Reason = true, "ExpiresSoon"
		c.Message += "; not renewed yet: " + strings.Join(due, ", ")
	}
	if fault != nil {
		c.Message += "; " + fault.Error()
		for _, h := range errdefs.ReportOf(fault).Steps {
			c.Steps = append(c.Steps, h...)
		}
	}
	return c
}

// ownCertificates are the certificates of a node with the embedded control plane.
type ownCertificates struct {
	env        component.Env
	kubeconfig string // the administrator's kubeconfig on the host
}

// create creates or renews the control plane's keys and certificates, and writes the admin kubeconfigs.
func (o ownCertificates) create(now time.Time) (pki.Changes, error) {
	changes, admin, err := o.ensure(now)
	if err != nil {
		return changes, err
	}
	inside, err := pki.FileKubeconfig(apiserver.Admin, o.env.APIServerURL, apiserver.ClusterName(o.env))
	if err != nil {
		return changes, err
	}
	return changes, component.Write([]component.File{
		{Path: o.kubeconfig, Mode: 0o600, Data: admin},
		{Path: insideAdmin, Mode: 0o600, Data: inside},
	})
}

// renew implements certificateStore. It leaves what users have added to the administrator's kubeconfig, for example the
// namespace of a context, until the credentials in it change.
func (o ownCertificates) renew(now time.Time) (pki.Changes, error) {
	changes, admin, err := o.ensure(now)
	if err != nil {
		return changes, err
	}
	if data, err := os.ReadFile(o.kubeconfig); err == nil && component.IncludesKubeconfig(data, admin) {
		return changes, nil
	}
	return changes, component.Write([]component.File{{Path: o.kubeconfig, Mode: 0o600, Data: admin}})
}

// ensure creates and renews the certificates, and returns the administrator's kubeconfig.
func (o ownCertificates) ensure(now time.Time) (pki.Changes, []byte, error) {
	spec, err := catalogue.Spec(o.env)
	if err != nil {
		return pki.Changes{}, nil, err
	}
	// Errors name the path on the host.
	changes, err := pki.Ensure(layout.NewData(o.env.Config.DataDir).PKI(), spec, now)
	if err != nil {
		return changes, nil, err
	}
	admin, err := apiserver.AdminKubeconfig(o.env, layout.InsidePKI)
	return changes, admin, err
}

func (o ownCertificates) validities() ([]pki.Validity, error) {
	spec, err := catalogue.Spec(o.env)
	if err != nil {
		return nil, err
	}
	all, err := pki.Validities(layout.InsidePKI, spec)
	admin, fault := kubeconfigValidity(o.kubeconfig, apiserver.ClusterName(o.env))
	if fault == nil {
		all = append(all, admin)
	}
	return all, errors.Join(err, fault)
}

// joinedCertificates are the certificates of a worker. The kubelet renews them, and the cluster's first node renews the
// authority.
type joinedCertificates struct {
	kubeconfig string // the worker's kubeconfig on the host
	user       string // the user in it
}

func (joinedCertificates) renew(time.Time) (pki.Changes, error) { return pki.Changes{}, nil }

func (j joinedCertificates) validities() ([]pki.Validity, error) {
	var all []pki.Validity
	authority, err := pki.ReadValidity(pki.ClusterCA, pki.CertFile(pki.ClusterCA))
	if err == nil {
		all = append(all, authority)
	}
	for name, path := range map[string]string{"kubelet-client": pki.NodeCert, "kubelet-server": filepath.Join(layout.InsideKubeletPKI, "kubelet-server-current.pem")} {
		v, readErr := pki.ReadValidity(name, path)
		switch {
		case errors.Is(readErr, os.ErrNotExist): // not issued yet; other conditions report a node without certificate
		case readErr != nil:
			err = errors.Join(err, readErr)
		default:
			v.ByKubelet = true
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b pki.Validity) int { return strings.Compare(a.Name, b.Name) })
	host, readErr := kubeconfigValidity(j.kubeconfig, j.user)
	if readErr == nil {
		host.ByKubelet = true
		all = append(all, host)
	}
	return all, errors.Join(err, readErr)
}

// kubeconfigValidity returns the validity of the certificate of a user in a kubeconfig on the host.
func kubeconfigValidity(path, user string) (pki.Validity, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return pki.Validity{}, err
	}
	cert, err := component.KubeconfigCertificate(data, user)
	if err != nil {
		return pki.Validity{}, fmt.Errorf("%s: %w", path, err)
	}
	return pki.ParseValidity("kubeconfig", cert)
}
