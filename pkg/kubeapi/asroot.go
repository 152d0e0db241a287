package kubeapi

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// fileLimit is far above the size of a kubeconfig and of what it names, in bytes.
const fileLimit = 4 << 20

// loadAsRoot reads a kubeconfig for a process of root (Options.AsRoot). In what it returns the current context is data only.
func loadAsRoot(path string) (*clientcmdapi.Config, error) {
	f, notRoots := hostinfo.OpenRootOnly(path)
	var replaceable *hostinfo.NotRootOnlyError
	var err error
	if errors.As(notRoots, &replaceable) {
		f, err = os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO does not block
	} else {
		err, notRoots = notRoots, nil
	}
	if err != nil {
		return nil, err
	}
	text, err := readRegular(f)
	if err != nil {
		return nil, err
	}
	raw, err := clientcmd.Load(text)
	if err != nil {
		return nil, err
	}
	kubeCtx := raw.Contexts[raw.CurrentContext]
	if kubeCtx == nil {
		return raw, nil // which the caller reports
	}
	if faults := inline(raw.Clusters[kubeCtx.Cluster], raw.AuthInfos[kubeCtx.AuthInfo], filepath.Dir(path), notRoots); len(faults) > 0 {
		return nil, errdefs.WithHint(errors.Join(faults...),
			"# run it as the account whose file it is:\nrootlessnode host enter --user NAME -- mounts verify --kubeconfig FILE --image IMAGE\n"+
				"# or give root a kubeconfig with certificate-authority-data, client-certificate-data, client-key-data or token in it:\n"+
				"kubectl config view --raw --flatten --minify")
	}
	return raw, nil
}

// inline replaces names of files by what is in them, and returns what root must not follow. notRoots is why the file that
// says all this is not root's, nil if it is; dir is its directory.
func inline(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo, dir string, notRoots error) (faults []error) {
	refuse := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: root does not follow it", fmt.Sprintf(format, args...)))
	}
	read := func(what string, name *string) []byte {
		file := *name
		*name = ""
		if file == "" {
			return nil
		}
		if notRoots != nil {
			refuse("%s names the file %q, and %v", what, file, notRoots)
			return nil
		}
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		f, err := hostinfo.OpenRootOnly(file)
		if err == nil {
			var text []byte
			if text, err = readRegular(f); err == nil {
				return text
			}
		}
		faults = append(faults, fmt.Errorf("%s: %w", what, err))
		return nil
	}
	data := func(what string, name *string, into *[]byte) {
		if text := read(what, name); text != nil && len(*into) == 0 { // data goes before a file, as in client-go
			*into = text
		}
	}
	if cluster != nil {
		data("certificate-authority", &cluster.CertificateAuthority, &cluster.CertificateAuthorityData)
		if cluster.ProxyURL != "" && notRoots != nil {
			refuse("proxy-url is set, and %v", notRoots)
		}
	}
	if user != nil {
		data("client-certificate", &user.ClientCertificate, &user.ClientCertificateData)
		data("client-key", &user.ClientKey, &user.ClientKeyData)
		if token := read("tokenFile", &user.TokenFile); token != nil { // it goes before token
			user.Token = strings.TrimSpace(string(token))
		}
		if user.Exec != nil {
			refuse("exec names the program %q", user.Exec.Command)
		}
		if user.AuthProvider != nil {
			refuse("auth-provider names the plugin %q", user.AuthProvider.Name)
		}
	}
	return faults
}

// readRegular reads a file and closes it.
func readRegular(f *os.File) (text []byte, err error) {
	defer func() { err = errors.Join(err, f.Close()) }()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", f.Name())
	}
	text, err = io.ReadAll(io.LimitReader(f, fileLimit+1))
	if err == nil && len(text) > fileLimit {
		err = fmt.Errorf("%s has more than %d bytes", f.Name(), fileLimit)
	}
	return text, err
}
