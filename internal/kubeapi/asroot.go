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

// fileLimit is the largest size in bytes of a kubeconfig and of a file that it references. It is far above real sizes.
const fileLimit = 4 << 20

// loadAsRoot reads a kubeconfig for a process that runs as root (Options.AsRoot). The current context of the result contains
// only data.
func loadAsRoot(path string) (*clientcmdapi.Config, error) {
	f, notRootOwned := hostinfo.OpenRootOnly(path)
	var replaceable *hostinfo.NotRootOnlyError
	var err error
	if errors.As(notRootOwned, &replaceable) {
		f, err = os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // do not block on a FIFO
	} else {
		err, notRootOwned = notRootOwned, nil
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
		return raw, nil // the caller reports it
	}
	if faults := inline(raw.Clusters[kubeCtx.Cluster], raw.AuthInfos[kubeCtx.AuthInfo], filepath.Dir(path), notRootOwned); len(faults) > 0 {
		return nil, errdefs.Errorf("%w", errors.Join(faults...)).Hint("# run it as the account that owns the file:").
			With(errdefs.Hint{{Action: errdefs.VerifyMounts, As: "NAME", Args: []string{"kubeconfig=FILE", "image=IMAGE"}}}).
			Hint("# or use a kubeconfig with inline certificate-authority-data, client-certificate-data, client-key-data or token:",
				"kubectl config view --raw --flatten --minify")
	}
	return raw, nil
}

// inline replaces file references by the contents of the files, and returns an error for each reference that root must not
// follow. notRootOwned is the reason why the kubeconfig is not owned by root, or nil if it is; dir is its directory.
func inline(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo, dir string, notRootOwned error) (faults []error) {
	refuse := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: refused when running as root", fmt.Sprintf(format, args...)))
	}
	read := func(what string, name *string) []byte {
		file := *name
		*name = ""
		if file == "" {
			return nil
		}
		if notRootOwned != nil {
			refuse("%s references the file %q, and %v", what, file, notRootOwned)
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
		if text := read(what, name); text != nil && len(*into) == 0 { // inline data takes precedence over a file, as in client-go
			*into = text
		}
	}
	if cluster != nil {
		data("certificate-authority", &cluster.CertificateAuthority, &cluster.CertificateAuthorityData)
		if cluster.ProxyURL != "" && notRootOwned != nil {
			refuse("proxy-url is set, and %v", notRootOwned)
		}
	}
	if user != nil {
		data("client-certificate", &user.ClientCertificate, &user.ClientCertificateData)
		data("client-key", &user.ClientKey, &user.ClientKeyData)
		if token := read("tokenFile", &user.TokenFile); token != nil { // it takes precedence over token
			user.Token = strings.TrimSpace(string(token))
		}
		if user.Exec != nil {
			refuse("exec runs the program %q", user.Exec.Command)
		}
		if user.AuthProvider != nil {
			refuse("auth-provider uses the plugin %q", user.AuthProvider.Name)
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
		err = fmt.Errorf("%s is larger than %d bytes", f.Name(), fileLimit)
	}
	return text, err
}
