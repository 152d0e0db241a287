// Package membership does the host's part of joining a cluster as a worker. It discovers the cluster with a bootstrap
// token, like kubeadm, pins the cluster's CA, compares versions, reads the settings that all nodes share, and stores the
// result in the data dir, so that later starts need no token. It does not change the cluster.
//
// Runs in: parent.
package membership

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
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// ConfigMaps that describe a cluster. The first is kubeadm's and public. The second is rootlessnode's; all authenticated
// clients can read it, and its keys are the fields of Cluster.
const (
	Namespace     = "kube-public"
	ClusterInfo   = "cluster-info"
	ClusterConfig = "rootlessnode"
)

// Record is a worker's information about its cluster. It is stored in layout.Data.JoinRecord.
type Record struct {
	// Server is the API server's URL, https://HOST:PORT.
	Server string `json:"server"`
	// NodeName and NodeUID identify the Node object; the UID is empty until the node has registered.
	NodeName string `json:"nodeName"`
	NodeUID  string `json:"nodeUID,omitempty"`
	// Cluster is the content of the cluster's ConfigMap; nil if there is none.
	Cluster *Cluster `json:"cluster,omitempty"`
}

// Cluster contains the settings that all nodes of a rootlessnode cluster share: the data of the ConfigMap
// kube-public/rootlessnode.
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

// ParseCluster parses the data of the ConfigMap. It reports all errors together and ignores unknown keys, which later
// versions may add.
func ParseCluster(data map[string]string) (*Cluster, error) {
	c := &Cluster{
		PodCIDR: data["podCIDR"], ServiceCIDR: data["serviceCIDR"], DNSAddress: data["dnsAddress"], Domain: data["domain"],
		PodCIDRv6: data["podCIDRv6"], ServiceCIDRv6: data["serviceCIDRv6"], Backend: data["backend"],
	}
	var errs []error
	fault := func(key, want string) {
		errs = append(errs, fmt.Errorf("%s: invalid value %q: must be %s", key, data[key], want))
	}
	for _, key := range []string{"podCIDR", "serviceCIDR", "podCIDRv6", "serviceCIDRv6"} {
		six := key == "podCIDRv6" || key == "serviceCIDRv6"
		if six && data[key] == "" {
			continue
		}
		if p, err := netip.ParsePrefix(data[key]); err != nil || p.Addr().Is4() == six {
			fault(key, "a CIDR of the matching IP family")
		}
	}
	if _, err := netip.ParseAddr(c.DNSAddress); err != nil {
		fault("dnsAddress", "an IP address")
	}
	if c.Domain == "" {
		fault("domain", "the cluster's DNS domain")
	}
	if c.Backend == "" {
		fault("backend", "a flannel backend")
	}
	port, err := strconv.ParseUint(data["vxlanPort"], 10, 16)
	if err != nil || port == 0 {
		fault("vxlanPort", "a port number")
	}
	c.VXLANPort = int(port)
	return c, errors.Join(errs...)
}

// Load reads the record from a data dir. It returns nil if the node has not joined a cluster.
func Load(data layout.Data) (*Record, error) {
	var r Record
	err := layout.ReadState(data.JoinRecord(), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && r.Server == "" {
		err = errors.New("server is not set")
	}
	if err != nil {
		return nil, errdefs.Preflight("read the record of the joined cluster: %w", err).
			Hintf("rm %s    # then join again with a token", data.JoinRecord())
	}
	return &r, nil
}

// Save writes the record for Load. Runs in: either; the data dir has the same path inside.
func (r *Record) Save(data layout.Data) error { return layout.WriteState(data.JoinRecord(), r) }

// Apply changes cfg to a worker of the recorded cluster: it sets the server and the settings that the cluster's nodes share,
// and clears the settings for the join itself. It does not modify data that cfg shares with copies of it.
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

// Input is the argument of Prepare.
type Input struct {
	// Config is complete and valid. It is not changed.
	Config *config.NodeConfig
	// Data is the node's data dir. The caller must hold the node's lock.
	Data layout.Data
	// Token is the bootstrap token, ID.SECRET; empty if none was given. It is a secret.
	Token string
	// KubeletVersion is the version of the kubelet and kube-proxy to run, such as v1.37.2. If it is empty, versions are not
	// compared.
	KubeletVersion string
	// Log receives warnings; nil drops them.
	Log logrus.FieldLogger
	// Now is the clock; time.Now if nil.
	Now func() time.Time
}

// Limits of requests to the server.
const (
	tryLimit   = 10 * time.Second
	totalLimit = 30 * time.Second
	tryPause   = time.Second
	// clockLimit is the tolerated difference of two clocks: certificates are valid from five minutes before they were signed
	// (kube-controller-manager, backdate of the signer).
	clockLimit = 5 * time.Minute
)

// joiner is the state of one call of Prepare.
type joiner struct {
	Input
	try, total, pause time.Duration
	// ahead is how far the server's clock is ahead of this host's; valid if timed is set.
	ahead time.Duration
	timed bool
}

// Prepare prepares the host for the start of a worker and returns an error if the worker cannot start. With a token or a
// kubeconfig, it discovers the cluster and writes the record, the CA certificate and the credentials, all or nothing.
// Without, it uses the existing record and checks whether the cluster still knows the node; the node can also start while
// the cluster is unreachable.
//
// Errors have the class errdefs.ErrConfig for the user's configuration and errdefs.ErrPreflight otherwise, with a hint. They
// never contain the token.
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
	if err := j.checkDataDir(rec, want.server); err != nil {
		return nil, err
	}
	switch {
	case want.token != nil:
		if want.server == "" {
			want.server = rec.Server
		}
		return j.byToken(ctx, rec, want)
	case rec != nil && !want.newer(j.Data):
		known, err := j.restart(ctx, rec)
		if want.file == "" || !errors.As(err, new(*staleError)) {
			return known, err
		}
		j.Log.WithField("kubeconfig", want.file).Warnf("joining again: %v", err)
		return j.byKubeconfig(ctx, rec, want)
	case want.file != "":
		return j.byKubeconfig(ctx, rec, want)
	}
	return nil, errdefs.Preflight("the node has not joined %s yet: a bootstrap token is required", want.server).With(joinHint(want.server))
}

// joinMethod is how the node joins.
type joinMethod struct {
	server string // if empty, the server of the record
	token  *token
	// file is a kubeconfig of the host, and creds is its content. own reports whether its user is the node itself.
	file  string
	creds kubeapi.Cluster
	own   bool
}

func (j *joiner) wanted() (joinMethod, error) {
	var (
		w   joinMethod
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
		return w, errdefs.Config("a bootstrap token and the kubeconfig %s are both set: use only one of them", w.file)
	}
	if err := readKubeconfig(j, &w); err != nil {
		return w, errdefs.Class(errdefs.ErrConfig, err)
	}
	return w, nil
}

// checkDataDir checks that the data dir belongs to the cluster at server, as far as this is known without a request.
func (j *joiner) checkDataDir(rec *Record, server string) error {
	if rec == nil {
		if server == "" {
			return errdefs.Config("there is no cluster to join: no server is set, and the node has not joined a cluster before").
				With(joinHint("https://HOST:6443"))
		}
		// The key of a CA is only in the data dir of a control plane.
		if key := filepath.Join(j.Data.PKI(), "ca.key"); exists(key) {
			return errdefs.Preflight("%s contains the data of a control plane and cannot be used to join %s", j.Data.Dir, server).
				With(otherDataHint(j))
		}
		return nil
	}
	if server != "" && server != rec.Server {
		return errdefs.Preflight("%s contains the data of a node of the cluster at %s and cannot be used to join %s", j.Data.Dir, rec.Server, server).
			With(otherDataHint(j))
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
