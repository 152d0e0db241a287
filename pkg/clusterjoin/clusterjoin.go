// Package clusterjoin is the host's part of becoming a worker of a cluster: it finds the cluster by a bootstrap token, as
// kubeadm does, pins its authority, compares versions, learns what all nodes of it agree on, and notes all that in the data
// dir, so that later starts need no token. It changes nothing in the cluster.
//
// Runs in: parent.
package clusterjoin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// Where a cluster tells everyone what it is. The first is kubeadm's and public; the second is ours and for all who are
// somebody, with the fields of Cluster as keys.
const (
	Namespace     = "kube-public"
	ClusterInfo   = "cluster-info"
	ClusterConfig = "rootlessnode"
)

// Record is what a worker knows of its cluster. It is kept in layout.Data.JoinRecord.
type Record struct {
	// Server is the API server's URL, https://HOST:PORT.
	Server string `json:"server"`
	// NodeName and NodeUID are the Node object's; the UID is empty until the node has registered.
	NodeName string `json:"nodeName"`
	NodeUID  string `json:"nodeUID,omitempty"`
	// Cluster is what the cluster's ConfigMap says, nil if it has none.
	Cluster *Cluster `json:"cluster,omitempty"`
}

// Cluster is what all nodes of a cluster of ours agree on: the data of the ConfigMap kube-public/rootlessnode.
type Cluster struct {
	PodCIDR       string `json:"podCIDR"`
	ServiceCIDR   string `json:"serviceCIDR"`
	DNSAddress    string `json:"dnsAddress"`
	Domain        string `json:"domain"`
	PodCIDRv6     string `json:"podCIDRv6,omitempty"`
	ServiceCIDRv6 string `json:"serviceCIDRv6,omitempty"`
	Backend       string `json:"backend"`
	VXLANPort     int    `json:"vxlanPort"`
}

// ParseCluster reads the data of the ConfigMap. It tells all faults; keys that it does not know are for later versions.
func ParseCluster(data map[string]string) (*Cluster, error) {
	c := &Cluster{
		PodCIDR: data["podCIDR"], ServiceCIDR: data["serviceCIDR"], DNSAddress: data["dnsAddress"], Domain: data["domain"],
		PodCIDRv6: data["podCIDRv6"], ServiceCIDRv6: data["serviceCIDRv6"], Backend: data["backend"],
	}
	var errs []error
	fault := func(key, want string) { errs = append(errs, fmt.Errorf("%s: %q: want %s", key, data[key], want)) }
	for _, key := range []string{"podCIDR", "serviceCIDR", "podCIDRv6", "serviceCIDRv6"} {
		six := key == "podCIDRv6" || key == "serviceCIDRv6"
		if six && data[key] == "" {
			continue
		}
		if p, err := netip.ParsePrefix(data[key]); err != nil || p.Addr().Is4() == six {
			fault(key, "an address range of its family")
		}
	}
	if _, err := netip.ParseAddr(c.DNSAddress); err != nil {
		fault("dnsAddress", "an address")
	}
	if c.Domain == "" {
		fault("domain", "the cluster's DNS domain")
	}
	if c.Backend == "" {
		fault("backend", "a flannel backend")
	}
	port, err := strconv.ParseUint(data["vxlanPort"], 10, 16)
	if err != nil || port == 0 {
		fault("vxlanPort", "a port")
	}
	c.VXLANPort = int(port)
	return c, errors.Join(errs...)
}

// Load reads the record of a data dir; nil if the node has joined no cluster.
func Load(data layout.Data) (*Record, error) {
	var r Record
	err := layout.ReadJSON(data.JoinRecord(), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && r.Server == "" {
		err = errors.New("names no server")
	}
	if err != nil {
		return nil, errdefs.WithHintf(errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("read the record of the joined cluster: %w", err)),
			"rm %s    # and join anew, with a token", data.JoinRecord())
	}
	return &r, nil
}

// Save writes the record, atomically, for Load. Runs in: either; the data dir has its name inside too.
func (r *Record) Save(data layout.Data) error { return layout.WriteJSON(data.JoinRecord(), r) }

// Apply makes cfg that of a worker of the recorded cluster: the server, and where the cluster says what its nodes agree on,
// that. How the node joined is done with and removed. Nothing that cfg shares with copies of it is written to.
func (r *Record) Apply(cfg *config.NodeConfig) {
	cfg.Join.Server, cfg.Join.BootstrapKubeconfig, cfg.Join.Kubeconfig = r.Server, "", ""
	cfg.ControlPlane.Embedded = false
	c := r.Cluster
	if c == nil {
		return
	}
	cfg.Cluster.PodCIDR, cfg.Cluster.ServiceCIDR = c.PodCIDR, c.ServiceCIDR
	cfg.Cluster.DNSAddress, cfg.Cluster.Domain = c.DNSAddress, c.Domain
	if c.PodCIDRv6 != "" {
		cfg.Cluster.PodCIDRv6, cfg.Cluster.ServiceCIDRv6 = c.PodCIDRv6, c.ServiceCIDRv6
	}
	cfg.Flannel.Backend, cfg.Flannel.VXLANPort = c.Backend, c.VXLANPort
}

// Input is what Prepare goes by.
type Input struct {
	// Config is complete and valid. It is not changed.
	Config *config.NodeConfig
	// Data is the node's data dir. Nobody else may use it meanwhile: the node's lock is held.
	Data layout.Data
	// Token is the bootstrap token, ID.SECRET, empty if none was given. A secret.
	Token string
	// KubeletVersion is that of the kubelet and kube-proxy which will run, such as v1.37.2; empty, no versions are compared.
	KubeletVersion string
	// Log receives warnings; nil drops them.
	Log logrus.FieldLogger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Limits of asking the server.
const (
	tryLimit   = 10 * time.Second
	totalLimit = 30 * time.Second
	tryPause   = time.Second
	// clockLimit is how far two clocks may be apart: a certificate is valid from five minutes before it was signed
	// (kube-controller-manager, signer's backdate).
	clockLimit = 5 * time.Minute
)

// joiner is one call of Prepare.
type joiner struct {
	Input
	try, total, pause time.Duration
	// ahead is how far the server's clock is ahead of ours, once timed.
	ahead time.Duration
	timed bool
}

// Prepare does what must be done on the host before a worker is started, and says why where it cannot start. With a token
// or a kubeconfig it finds the cluster and writes the record, the authority's certificate and the credentials, all or
// nothing. Without, it goes by the record of the last time, asks the cluster whether it still knows the node, and lets
// the node start too when the cluster cannot be reached.
//
// Errors are of class errdefs.ErrConfig for what the user wrote and errdefs.ErrPreflight for the rest, with a hint, and
// never hold the token.
func Prepare(ctx context.Context, in Input) (*Record, error) {
	return newJoiner(in).prepare(ctx)
}

func newJoiner(in Input) *joiner {
	if in.Log == nil {
		silent := logrus.New()
		silent.SetOutput(io.Discard)
		in.Log = silent
	}
	if in.Now == nil {
		in.Now = time.Now
	}
	return &joiner{Input: in, try: tryLimit, total: totalLimit, pause: tryPause}
}

func (j *joiner) prepare(ctx context.Context) (*Record, error) {
	rec, err := Load(j.Data)
	if err != nil {
		return nil, err
	}
	want, err := j.wanted()
	if err != nil {
		return nil, err
	}
	if err := j.sameCluster(rec, want.server); err != nil {
		return nil, err
	}
	switch {
	case want.token != nil:
		if want.server == "" {
			want.server = rec.Server
		}
		return j.byToken(ctx, rec, want)
	case rec != nil && !want.newer(j.Data):
		known, err := j.again(ctx, rec)
		if want.file == "" || !errors.As(err, new(*staleError)) {
			return known, err
		}
		j.Log.WithField("kubeconfig", want.file).Warnf("joining anew: %v", err)
		return j.byKubeconfig(ctx, rec, want)
	case want.file != "":
		return j.byKubeconfig(ctx, rec, want)
	}
	return nil, j.hintToken(fault("the node has not joined %s yet: that needs a bootstrap token", want.server), want.server)
}

// way is how the node is to join.
type way struct {
	server string // empty: that of the record
	token  *token
	// file is a kubeconfig of the host, and creds what is in it. own: its user is the node.
	file  string
	creds kubeapi.Cluster
	own   bool
}

func (j *joiner) wanted() (way, error) {
	var (
		w   way
		err error
	)
	if j.Token != "" {
		if w.token, err = parseToken(j.Token); err != nil {
			return w, err
		}
	}
	c := j.Config.Join
	switch {
	case c.Server != "":
		w.server, err = config.ParseServer(c.Server)
		return w, errdefs.Class(errdefs.ErrConfig, err)
	case c.Kubeconfig != "":
		w.file, w.own = c.Kubeconfig, true
	case c.BootstrapKubeconfig != "":
		w.file = c.BootstrapKubeconfig
	default:
		return w, nil
	}
	if w.token != nil {
		return w, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("a bootstrap token and the kubeconfig %s: want one way to join", w.file))
	}
	if err := j.readKubeconfig(&w); err != nil {
		return w, errdefs.Class(errdefs.ErrConfig, err)
	}
	return w, nil
}

// sameCluster makes sure that the data dir is that of the cluster at server, as far as that can be told without asking.
func (j *joiner) sameCluster(rec *Record, server string) error {
	if rec == nil {
		if server == "" {
			return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, errors.New("there is no cluster to join: none is named, and the node has joined none before")),
				joinHint("https://HOST:6443"))
		}
		// The key of an authority is where the authority is: in a control plane.
		if key := filepath.Join(j.Data.PKI(), "ca.key"); exists(key) {
			return errdefs.WithHint(fault("%s holds the data of a cluster of the node's own, so the node cannot join %s with it", j.Data.Dir, server),
				j.otherDataHint())
		}
		return nil
	}
	if server != "" && server != rec.Server {
		return errdefs.WithHint(fault("%s holds the data of a node of the cluster at %s, so the node cannot join %s with it", j.Data.Dir, rec.Server, server),
			j.otherDataHint())
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
