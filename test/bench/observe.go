package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// roleObserve is the role of this program as the observer. It runs in the network namespace of a side and reports when each component is
// ready, by the same rules for both sides.
const roleObserve = "observe"

// Events that the observer reports.
const (
	seenAPI   = "api"        // the API server accepts a watch of the Node
	seenNode  = "registered" // the Node object has a pod CIDR
	seenReady = "node-ready" // its Ready condition is true, and not from an earlier run
	// Components that report at their own health endpoints.
	seenFlannel   = "flannel"
	seenProxy     = "kube-proxy"
	seenManager   = "kube-controller-manager"
	seenScheduler = "kube-scheduler"
)

// observed returns the events that make a side ready.
func observed() []string {
	return []string{seenAPI, seenManager, seenScheduler, seenNode, seenFlannel, seenReady, seenProxy}
}

// Intervals for polling health endpoints. The load is negligible. The Node is watched, not polled.
const (
	observePoll    = 20 * time.Millisecond
	observeRequest = 2 * time.Second
)

// report is one line of the observer's output.
type report struct {
	Seen string    `json:"seen"`
	At   time.Time `json:"at"`
}

type observer struct {
	pki, api, node string
	since          time.Time
	mu             sync.Mutex
	out            *json.Encoder
}

func observe(args []string) error {
	fs := flag.NewFlagSet(roleObserve, flag.ContinueOnError)
	o := &observer{out: json.NewEncoder(os.Stdout)}
	var since string
	urls := map[string]string{}
	var limit time.Duration
	fs.StringVar(&o.pki, "pki", "", "directory of the cluster's certificates")
	fs.StringVar(&o.api, "api", "", "URL of the API server")
	fs.StringVar(&o.node, "node", "", "name of the Node object")
	fs.StringVar(&since, "since", "", "ignore reports of the kubelet before this time")
	fs.Func("health", "NAME=URL: health endpoint of a component; may be repeated", func(s string) error {
		name, url, _ := strings.Cut(s, "=")
		urls[name] = url
		return nil
	})
	fs.DurationVar(&limit, "limit", time.Minute, "time limit")
	if err := fs.Parse(args); err != nil {
		return err
	}
	var err error
	if o.since, err = time.Parse(time.RFC3339Nano, since); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var g errgroup.Group
	for name, url := range urls {
		g.Go(func() error { return o.health(ctx, name, url) })
	}
	g.Go(func() error { return o.watch(ctx) })
	return g.Wait()
}

func (o *observer) saw(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.out.Encode(report{what, time.Now()}) // it fails only if the reader has ended
}

// health requests url until the status code is 200.
func (o *observer) health(ctx context.Context, what, url string) error {
	client := &http.Client{Timeout: observeRequest, Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, // only the component can listen there
	}}
	return until(ctx, what, func() error {
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, resp.Body) // only the status code matters
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		o.saw(what)
		return nil
	})
}

func until(ctx context.Context, what string, f func() error) error {
	tick := time.NewTicker(observePoll)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s was not seen: %w", what, err)
		case <-tick.C:
		}
	}
}

// event has the fields of a watch event that are used.
type event struct {
	Object struct {
		Spec   struct{ PodCIDR string }
		Status struct {
			Conditions []struct {
				Type, Status      string
				LastHeartbeatTime time.Time
			}
		}
	}
}

// watch watches the Node object until it is Ready.
func (o *observer) watch(ctx context.Context) error {
	seen := map[string]bool{}
	see := func(what string) {
		if !seen[what] {
			seen[what] = true
			o.saw(what)
		}
	}
	var client *http.Client
	return until(ctx, seenReady, func() (err error) {
		if client == nil { // the certificates may not exist yet
			if client, err = o.client(); err != nil {
				return err
			}
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.api+"/api/v1/nodes?watch=1&fieldSelector=metadata.name="+o.node, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		see(seenAPI)
		for events := json.NewDecoder(resp.Body); ; {
			var e event
			if err := events.Decode(&e); err != nil {
				return err
			}
			if e.Object.Spec.PodCIDR != "" {
				see(seenNode)
			}
			if o.ready(e) {
				see(seenReady)
				return nil
			}
		}
	})
}

// ready reports whether the Ready condition is true and the kubelet has reported since the start. After a stop, the object keeps the
// condition that it had. The API's times are whole seconds.
func (o *observer) ready(e event) bool {
	for _, c := range e.Object.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True" && !c.LastHeartbeatTime.Before(o.since.Truncate(time.Second))
		}
	}
	return false
}

func (o *observer) client() (*http.Client, error) {
	ca, err := os.ReadFile(filepath.Join(o.pki, "ca.crt"))
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(o.pki, "admin.crt"), filepath.Join(o.pki, "admin.key"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true,
	}}, nil
}
