package clusterjoin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

const (
	secretMode fs.FileMode = 0o600
	publicMode fs.FileMode = 0o644
	// bootstrapUser is the user's name in the bootstrap kubeconfig, which means nothing to the cluster.
	bootstrapUser = "bootstrap"
)

// entry is a file to be made, or a link if it has a target.
type entry struct {
	path   string
	mode   fs.FileMode
	text   []byte
	target string
}

// keep writes what the join has found, the record last: without it nothing was joined.
func (j *joiner) keep(cluster *Cluster, w way) (*Record, error) {
	rec := &Record{Server: w.server, NodeName: j.Config.NodeName, Cluster: cluster}
	all := []entry{{path: j.Data.ClusterCA(), mode: publicMode, text: w.creds.CA}}
	gone := ""
	if w.own {
		name := clientPrefix + j.Now().Format(clientDate) + ".pem"
		text := slices.Concat(w.creds.CertPEM, []byte("\n"), w.creds.KeyPEM)
		all = append(all,
			entry{path: filepath.Join(j.Data.KubeletPKI(), name), mode: secretMode, text: text},
			entry{path: filepath.Join(j.Data.KubeletPKI(), clientCurrent), target: filepath.Join(layout.InsideKubeletPKI, name)})
		gone = j.Data.BootstrapKubeconfig() // of a join that was not finished; this is another
	} else {
		text, err := w.creds.Kubeconfig(bootstrapUser)
		if err != nil {
			return nil, errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("render the bootstrap kubeconfig: %w", err))
		}
		all = append(all, entry{path: j.Data.BootstrapKubeconfig(), mode: secretMode, text: text})
	}
	text, err := json.Marshal(rec)
	if err != nil {
		return nil, errdefs.Class(errdefs.ErrPreflight, err)
	}
	all = append(all, entry{path: j.Data.JoinRecord(), mode: secretMode, text: append(text, '\n')})
	if err := j.writeAll(all); err != nil {
		return nil, errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("note the joined cluster: %w", err))
	}
	if gone != "" {
		if err := os.Remove(gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errdefs.Class(errdefs.ErrPreflight, err)
		}
	}
	return rec, nil
}

// writeAll makes every entry beside its place before it puts any there. What was not there before goes again if the
// putting comes to a halt.
func (j *joiner) writeAll(all []entry) (err error) {
	var temps, put []string
	defer func() {
		for _, path := range temps {
			_ = os.Remove(path) // those put in place are gone already
		}
		if err != nil {
			for _, path := range put {
				_ = os.Remove(path) // the fault that led here is the one to tell
			}
		}
	}()
	// From the top, so that each gets its own mode.
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
		temp, err := e.write()
		if err != nil {
			return err
		}
		temps = append(temps, temp)
	}
	for i, e := range all {
		had := exists(e.path)
		if err := os.Rename(temps[i], e.path); err != nil {
			return err
		}
		if !had {
			put = append(put, e.path)
		}
	}
	return nil
}

// write makes the entry beside its place, on the disk, and returns where.
func (e entry) write() (string, error) {
	dir, name := filepath.Split(e.path)
	f, err := os.CreateTemp(dir, "."+name+".*") // mode 0600
	if err != nil {
		return "", err
	}
	temp := f.Name()
	if e.target != "" {
		f.Close()
		if err := os.Remove(temp); err != nil {
			return "", err
		}
		return temp, os.Symlink(e.target, temp)
	}
	_, err = f.Write(e.text)
	if err == nil {
		err = f.Chmod(e.mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = os.Remove(temp) // best effort: the write's own error is the one to tell
		return "", err
	}
	return temp, nil
}
