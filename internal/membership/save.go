package membership

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const (
	secretMode fs.FileMode = 0o600
	publicMode fs.FileMode = 0o644
	// bootstrapUser is the user's name in the bootstrap kubeconfig. The cluster does not use it.
	bootstrapUser = "bootstrap"
)

// entry is a file to create, or a symbolic link if target is set.
type entry struct {
	path   string
	mode   fs.FileMode
	text   []byte
	target string
}

// save writes the result of the join. The record is last, because without it the node has not joined.
func (j *joiner) save(cluster *Cluster, w joinMethod) (*Record, error) {
	rec := &Record{Server: w.server, NodeName: j.Config.NodeName, Cluster: cluster}
	all := []entry{{path: j.Data.ClusterCA(), mode: publicMode, text: w.creds.CA}}
	obsolete := ""
	if w.own {
		name := clientPrefix + j.Now().Format(clientDate) + ".pem"
		text := slices.Concat(w.creds.CertPEM, []byte("\n"), w.creds.KeyPEM)
		all = append(all,
			entry{path: filepath.Join(j.Data.KubeletPKI(), name), mode: secretMode, text: text},
			entry{path: filepath.Join(j.Data.KubeletPKI(), clientCurrent), target: filepath.Join(layout.InsideKubeletPKI, name)})
		obsolete = j.Data.BootstrapKubeconfig() // left by an unfinished earlier join
	} else {
		text, err := w.creds.Kubeconfig(bootstrapUser)
		if err != nil {
			return nil, errdefs.Preflight("render the bootstrap kubeconfig: %w", err)
		}
		all = append(all, entry{path: j.Data.BootstrapKubeconfig(), mode: secretMode, text: text})
	}
	text, err := layout.EncodeState(rec)
	if err != nil {
		return nil, errdefs.Class(errdefs.ErrPreflight, err)
	}
	all = append(all, entry{path: j.Data.JoinRecord(), mode: secretMode, text: text})
	if err := j.writeAll(all); err != nil {
		return nil, errdefs.Preflight("store the joined cluster: %w", err)
	}
	if obsolete != "" {
		if err := os.Remove(obsolete); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errdefs.Class(errdefs.ErrPreflight, err)
		}
	}
	return rec, nil
}

// writeAll creates every entry under a temporary name before it renames any. If a rename fails, it removes the entries that
// did not exist before.
func (j *joiner) writeAll(all []entry) (err error) {
	var staged []*atomicfile.Staged
	var put []string
	defer func() {
		for _, s := range staged {
			s.Discard()
		}
		if err != nil {
			for _, path := range put {
				_ = os.Remove(path) // best effort: the first error is returned
			}
		}
	}()
	// Create the directories from the top, so that each has its own mode.
	if err := os.MkdirAll(j.Data.Dir, 0o700); err != nil {
		return err
	}
	for _, e := range all {
		dir, mode := filepath.Dir(e.path), fs.FileMode(0o755)
		if dir == j.Data.PKI() || dir == j.Data.KubeletPKI() {
			mode = 0o700
		}
		if err := os.MkdirAll(dir, mode); err != nil {
			return err
		}
	}
	for _, e := range all {
		s, err := e.stage()
		if err != nil {
			return err
		}
		staged = append(staged, s)
	}
	for i, e := range all {
		had := exists(e.path)
		if err := staged[i].Commit(); err != nil {
			return err
		}
		if !had {
			put = append(put, e.path)
		}
	}
	return nil
}

func (e entry) stage() (*atomicfile.Staged, error) {
	if e.target != "" {
		return atomicfile.StageSymlink(e.target, e.path)
	}
	return atomicfile.Options{Durable: true}.Stage(e.path, e.text, e.mode)
}
