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

// health serves /healthz, and /readyz, which succeeds when the lease is in use.
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
	_, _ = io.WriteString(w, text+"\n") // the client has gone
}

// startHealth starts the health server. It listens before it returns, so that it
// can return the error if the port is in use. With port 0 it serves nothing.
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
		_ = server.Close() // requests take no time; there is none to wait for
	})
	return h, nil
}
