package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/kubeconfig"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// UserKubeconfig is the kubeconfig that kubectl uses without options: the files in KUBECONFIG, or ~/.kube/config. A node never changes
// it by itself.
type UserKubeconfig struct {
	node  *Node
	files kubeconfig.Files
	err   error
}

// NewUserKubeconfig returns the kubeconfig of the account for a node, by the environment of this process.
func NewUserKubeconfig(n *Node) *UserKubeconfig {
	paths, err := kubeconfig.Paths(os.Getenv("KUBECONFIG"), os.Getenv("HOME"))
	return &UserKubeconfig{n, kubeconfig.Files{
		Paths: paths, Records: layout.KubeconfigRecords(n.reg.XDGDataHome), Skip: isNodeKubeconfig,
	}, err}
}

// isNodeKubeconfig reports whether a file is the kubeconfig in a node's data dir, which the node replaces.
func isNodeKubeconfig(path string) bool {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	data := layout.NewData(filepath.Dir(path))
	return path == data.AdminKubeconfig() && exists(data.Record())
}

// Merge adds the context rootlessnode-NAME, with a cluster and a user of the same name, or updates it. It returns the name of the context and
// the path of the changed file; the path is empty if kubectl uses only kubeconfig files of nodes. The context becomes the current one only
// if there is none. The entries refer to the node's certificates by path, so they stay valid when certificates are renewed.
//
// Errors: of class errdefs.ErrConfig for a worker, which has no administrator; errdefs.ErrNotRunning if the node was never started;
// otherwise the reason why the file is unchanged.
func (k *UserKubeconfig) Merge() (context, path string, err error) {
	n := k.node
	if n.Config().Joins() {
		return "", "", errdefs.Config("merge kubeconfig: node %q is a worker and has no administrator's kubeconfig; use that of the cluster", n.Config().Name)
	}
	data, err := os.ReadFile(n.Kubeconfig())
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", errdefs.NotRunning("merge kubeconfig: node %q was never started", n.Config().Name).Do(errdefs.Start)
	}
	if err = errors.Join(err, k.err); err != nil {
		return "", "", err
	}
	server, err := component.KubeconfigServer(data)
	if err != nil {
		return "", "", fmt.Errorf("read %s: %w", n.Kubeconfig(), err)
	}
	e := kubeconfig.Entry{Name: contextName(n), Server: server, CAFile: n.data.ClusterCA(), CertFile: k.adminFile(pki.CertFile), KeyFile: k.adminFile(pki.KeyFile)}
	path, err = k.files.Merge(e)
	return e.Name, path, err
}

// Unmerge removes the context, the cluster and the user that Merge has added, from every file to which they were added, and returns the
// changed files. A file that Merge created is removed if nothing else is in it. Unmerge also works if the node's data was deleted.
//
// Errors: the files that cannot be changed, with the reasons.
func (k *UserKubeconfig) Unmerge() (changed []string, err error) {
	return k.files.Unmerge(contextName(k.node), func(certFile string) bool { return certFile == k.adminFile(pki.CertFile) })
}

func contextName(n *Node) string { return apiserver.ClusterName(component.Env{Config: n.Config()}) }

// adminFile returns the path on the host of a file of the administrator. inside returns its path inside.
func (k *UserKubeconfig) adminFile(inside func(name string) string) string {
	path, _ := k.node.data.OnHost(inside(apiserver.Admin)) // the directory is in the data dir
	return path
}
