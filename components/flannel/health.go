package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

// health answers /healthz from the start and /readyz once the lease is in use.
type health struct {
	ready atomic.Bool
}

func (h *health) setReady() { h.ready.Store(true) }

func (h *health) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if h.ready.Load() {
			answer(w, http.StatusOK, "ok")
			return
		}
		answer(w, http.StatusServiceUnavailable, "no lease in use yet")
	})
	return mux
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // the asker has gone
}

// startHealth listens before it returns, so that a port in use is an error of the
// start and not of some later moment. Port 0 serves nothing.
func startHealth(ctx context.Context, wg *sync.WaitGroup, ip string, port int) (*health, error) {
	h := &health{}
	if port == 0 {
		return h, nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("health server: %w", err)
	}
	server := &http.Server{Handler: h.handler(), ReadHeaderTimeout: 5 * time.Second}
	wg.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.Errorf("health server: %v", err)
		}
	})
	wg.Go(func() {
		<-ctx.Done()
		_ = server.Close() // requests are answered at once; there is none to wait for
	})
	return h, nil
}
