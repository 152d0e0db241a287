package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller/metrics"
)

// health serves /readyz, which succeeds when the storage class exists.
type health struct{ ready atomic.Bool }

func (h *health) setReady() { h.ready.Store(true) }

func (h *health) readyz(w http.ResponseWriter, _ *http.Request) {
	if !h.ready.Load() {
		http.Error(w, "the storage class does not exist yet", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok") //nolint:errcheck // the client has gone
}

// serve starts the server of health and metrics. It listens before it returns, so that
// it can return the error if the port is in use.
func serve(ctx context.Context, wg *sync.WaitGroup, address string, m metrics.Metrics) (*health, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("health server: %w", err)
	}
	h := &health{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", h.readyz)
	mux.Handle("GET /metrics", metricsHandler(m))
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
	return h, nil
}

// metricsHandler serves the library's metrics.
func metricsHandler(m metrics.Metrics) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		m.PersistentVolumeClaimProvisionTotal, m.PersistentVolumeClaimProvisionFailedTotal, m.PersistentVolumeClaimProvisionDurationSeconds,
		m.PersistentVolumeDeleteTotal, m.PersistentVolumeDeleteFailedTotal, m.PersistentVolumeDeleteDurationSeconds,
	)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}
