package registryauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/distribution/reference"
	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	credentialprovider "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/rootlessnode/rootlessnode/config"
)

const (
	// requestTimeout limits a request, including its credential helper.
	requestTimeout = helperTimeout + 10*time.Second
	// maxMessage is the maximum size of a request and of a reply in bytes.
	maxMessage = 1 << 20
)

// reply is the JSON that the server writes: the response for the kubelet, or an error.
type reply struct {
	Response *credentialprovider.CredentialProviderResponse `json:"response,omitempty"`
	Error    string                                         `json:"error,omitempty"`
}

// Server serves the account's logins to the kubelet's plugin.
//
// Runs in: parent.
type Server struct {
	Finder
	// Registries have the mirrors for whose logins the server looks too.
	Registries map[string]config.Registry
	Log        logrus.FieldLogger
}

// Serve answers one request on each connection of l until ctx ends. It closes l.
func (s Server) Serve(ctx context.Context, l net.Listener) error {
	var connections sync.WaitGroup
	defer connections.Wait()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return errors.Join(err, l.Close())
		}
		connections.Go(func() {
			defer func() { _ = c.Close() }()
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })()
			_ = json.NewEncoder(c).Encode(s.answer(ctx, c)) // fails if the plugin has ended
		})
	}
}

func (s Server) answer(ctx context.Context, in io.Reader) reply {
	var request credentialprovider.CredentialProviderRequest
	if err := json.NewDecoder(io.LimitReader(in, maxMessage)).Decode(&request); err != nil {
		return reply{Error: fmt.Sprintf("decode the request: %v", err)}
	}
	logins, err := s.Logins(ctx, request.Image)
	if err != nil {
		s.Log.WithField("image", request.Image).WithError(err).Warn("look for the login at the registry")
		if len(logins) == 0 {
			return reply{Error: err.Error()}
		}
	}
	return reply{Response: response(request.Image, logins)}
}

// Logins returns the account's logins for an image in the order in which to try them. containerd asks the mirrors of a registry first, and
// uses one login for a pull. With an error, it returns those that it found.
func (s Server) Logins(ctx context.Context, image string) (found []Login, err error) {
	name, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, fmt.Errorf("parse image name %q: %w", image, err)
	}
	registry, ok := s.Registries[reference.Domain(name)]
	if !ok {
		registry = s.Registries[config.AnyRegistry]
	}
	var images []string
	for _, mirror := range registry.Mirrors {
		images = append(images, config.MirrorImage(mirror, reference.Path(name)))
	}
	if !registry.MirrorsOnly {
		images = append(images, name.Name())
	}
	var errs []error
	for _, one := range images {
		login, err := s.Find(ctx, one)
		if login != nil {
			found = append(found, *login)
		}
		errs = append(errs, err)
	}
	return found, errors.Join(errs...)
}

// response returns the kubelet's form of the logins for an image. The kubelet tries the entries whose key is a prefix of the image's name,
// those with longer keys first.
func response(image string, logins []Login) *credentialprovider.CredentialProviderResponse {
	r := &credentialprovider.CredentialProviderResponse{
		TypeMeta:      metav1.TypeMeta{APIVersion: credentialprovider.SchemeGroupVersion.String(), Kind: "CredentialProviderResponse"},
		CacheKeyType:  credentialprovider.ImagePluginCacheKeyType,
		CacheDuration: &metav1.Duration{}, // the next pull asks again
		Auth:          map[string]credentialprovider.AuthConfig{},
	}
	for i, l := range logins {
		if i < len(image) {
			r.Auth[image[:len(image)-i]] = credentialprovider.AuthConfig{Username: l.Username, Password: l.Password}
		}
	}
	return r
}
