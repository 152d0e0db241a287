package cristop

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// userAgent is the User-Agent of httpGet hooks. It begins with the same word as the kubelet's.
const userAgent = "kube-lifecycle/rootlessnode"

// maxBody is the maximum number of bytes that are read of the response to an httpGet hook.
const maxBody = 10 << 10

// runHook runs the preStop hook of a container and waits until the hook or limit ends. An unfinished hook continues until ctx ends, which is
// when its container has ended. A failed hook does not affect the stop.
func (s *stopper) runHook(limit, ctx context.Context, c *container) {
	over := make(chan error, 1)
	go func() { over <- s.hook(ctx, c) }()
	select {
	case err := <-over:
		if err != nil && ctx.Err() == nil {
			s.warn("preStop hook of container %s of pod %s: %v", c.name, c.pod.name, err)
		}
	case <-limit.Done():
		if ctx.Err() == nil {
			s.warn("preStop hook of container %s of pod %s: not finished within the grace period", c.name, c.pod.name)
		}
	}
}

func (s *stopper) hook(ctx context.Context, c *container) error {
	switch h := c.preStop; {
	case h.Exec != nil:
		return s.exec(ctx, c, h.Exec.Command)
	case h.HTTPGet != nil:
		return s.httpGet(ctx, c, h.HTTPGet)
	case h.Sleep != nil:
		return sleep(ctx, time.Duration(h.Sleep.Seconds)*time.Second)
	}
	return errors.New("unsupported action")
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// exec runs a command in the container. Its output is not reported because it may contain secrets, as in the kubelet.
func (s *stopper) exec(ctx context.Context, c *container, command []string) error {
	r, err := s.rt.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: c.id, Cmd: command})
	if err != nil {
		return fmt.Errorf("run %q: %w", command[:min(1, len(command))], err)
	}
	if code := r.GetExitCode(); code != 0 {
		return fmt.Errorf("run %q: exit code %d", command[:min(1, len(command))], code)
	}
	return nil
}

// httpGet sends the request of a hook. As in the kubelet, any response is a success, certificates are not verified, and the request is
// repeated with HTTP if the server does not support HTTPS.
func (s *stopper) httpGet(ctx context.Context, c *container, get *corev1.HTTPGetAction) error {
	host := get.Host
	if host == "" {
		var err error
		if host, err = s.address(ctx, c); err != nil {
			return err
		}
	}
	req, err := request(ctx, c, get, host)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, CheckRedirect: sameHost}
	err = send(client, req)
	if err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		plain := req.Clone(ctx)
		plain.URL.Scheme = "http"
		plain.Header.Del("Authorization")
		return send(client, plain)
	}
	return err
}

func send(client *http.Client, req *http.Request) error {
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody)) // any response is a success
	return resp.Body.Close()
}

// sameHost follows only redirects to the same host.
func sameHost(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}

// address returns the address of the container's pod.
func (s *stopper) address(ctx context.Context, c *container) (string, error) {
	call, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	r, err := s.rt.PodSandboxStatus(call, &cri.PodSandboxStatusRequest{PodSandboxId: c.sandbox})
	if err != nil {
		return "", fmt.Errorf("find the pod's address: %w", err)
	}
	if ip := r.GetStatus().GetNetwork().GetIp(); ip != "" {
		return ip, nil
	}
	if r.GetStatus().GetLinux().GetNamespaces().GetOptions().GetNetwork() == cri.NamespaceMode_NODE && s.req.NodeIP != "" {
		return s.req.NodeIP, nil
	}
	return "", errors.New("find the pod's address: the pod has no address")
}

func request(ctx context.Context, c *container, get *corev1.HTTPGetAction, host string) (*http.Request, error) {
	port, err := portOf(c, get.Port)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(get.Path)
	if err != nil {
		u = &url.URL{Path: get.Path}
	}
	u.Scheme, u.Host = "http", net.JoinHostPort(host, strconv.Itoa(port))
	if get.Scheme != "" {
		u.Scheme = strings.ToLower(string(get.Scheme))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range get.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	if _, set := req.Header["User-Agent"]; !set {
		req.Header.Set("User-Agent", userAgent)
	}
	if _, set := req.Header["Accept"]; !set {
		req.Header.Set("Accept", "*/*")
	}
	req.Host = req.Header.Get("Host")
	return req, nil
}

// portOf returns the number of a port. port may be the name of one of the container's ports.
func portOf(c *container, port intstr.IntOrString) (int, error) {
	n := port.IntValue() // also parses a string with a number
	if port.Type == intstr.String {
		for _, p := range c.ports {
			if p.Name == port.StrVal {
				n = int(p.ContainerPort)
			}
		}
	}
	if n <= 0 || n > 65535 {
		return 0, fmt.Errorf("container %s has no port %q", c.name, port.String())
	}
	return n, nil
}
