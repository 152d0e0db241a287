package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

// tableName is the nftables table of upstream's rules.
const tableName = "kube-network-policies"

// run enforces policies until ctx is done.
func run(ctx context.Context, o options) error {
	if err := tryQueue(uint16(o.queueID)); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("API client: %w", err)
	}

	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	if err := serve(ctx, &wg, o); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	controller, err := networkpolicy.NewController(client, factory.Networking().V1().NetworkPolicies(),
		factory.Core().V1().Namespaces(), factory.Core().V1().Pods(), nil, nil, nil, nil,
		networkpolicy.Config{
			FailOpen: o.failOpen, QueueID: o.queueID, NodeName: o.hostname, NFTableName: tableName,
			NetfilterBug1766Fix: o.netfilterBug1766Fix,
			// Keep NRI enabled: without it version 0.8.0 dereferences nil at the first packet from an address that is not
			// a pod's. If no process listens on NRI's default socket, it logs that once and continues without NRI.
		})
	if err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	if err := addForwarded(uint16(o.queueID), o.failOpen); err != nil {
		return err
	}
	defer removeForwarded()
	factory.Start(ctx.Done())
	// The controller removes its rules when it ends.
	if err := controller.Run(ctx); err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	if ctx.Err() == nil {
		return errors.New("the controller ended unexpectedly")
	}
	return nil
}

// serve starts the health server. It listens before it returns, so that it can
// return the error if the port is in use.
func serve(ctx context.Context, wg *sync.WaitGroup, o options) error {
	listener, err := net.Listen("tcp", o.address)
	if err != nil {
		return fmt.Errorf("health server: %w", err)
	}
	mux := http.NewServeMux()
	health := func(w http.ResponseWriter, _ *http.Request) {
		if err := enforcing(uint16(o.queueID)); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok") //nolint:errcheck // the client has gone
	}
	mux.HandleFunc("GET /healthz", health)
	mux.HandleFunc("GET /readyz", health)
	mux.Handle("GET /metrics", promhttp.Handler())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	wg.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.Errorf("health server: %v", err)
		}
	})
	wg.Go(func() {
		<-ctx.Done()
		_ = server.Close() // requests take no time; there is none to wait for
	})
	return nil
}
