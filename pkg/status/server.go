package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status/localsock"
)

const (
	// maxLongPoll bounds ?timeout= of a status request, so that a forgotten client costs little.
	maxLongPoll = 10 * time.Minute
	// drainTime is how long Serve lets requests end by themselves after ctx has ended.
	drainTime = time.Second
	// maxBody is the largest request body read, in bytes.
	maxBody = 64 << 10
)

// Control is what the socket can ask of the node. All methods begin the thing and return; they do not wait for it.
type Control interface {
	// Stop begins to stop the node.
	Stop(reason string) error
	// Restart ends a component so that it is started again. An unknown name is an error of class errdefs.ErrConfig.
	Restart(component string) error
	// AddForward makes a forward by hand and returns its owner in Status.Ports. A malformed one is an error of class
	// errdefs.ErrConfig; whether its port can be had, Status.Ports tells.
	AddForward(forward string) (owner string, err error)
	// RemoveForward takes one back, and returns its owner.
	RemoveForward(forward string) (owner string, err error)
}

// Listen makes the socket at path for Serve: mode 0600 in a directory of mode 0700. See localsock.Listen.
func Listen(path string) (*net.UnixListener, error) { return localsock.Listen(path) }

// Serve answers HTTP on l until ctx ends: GET /v1/status, GET /v1/events, POST /v1/stop,
// POST /v1/components/NAME/restart, POST and DELETE /v1/forwards. Only the process's own uid is served, as its user namespace sees it: on the host
// that is the account itself. It closes l.
//
// Close the hub before ctx ends and followers get the last events first. Runs in: child (node role).
func Serve(ctx context.Context, l net.Listener, h *Hub, c Control) error {
	base, cancelRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRequests()
	srv := &http.Server{
		Handler:           handler(h, c),
		ReadHeaderTimeout: drainTime * 10,
		BaseContext:       func(net.Listener) context.Context { return base },
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(localsock.Own(l)) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve status socket: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	err := srv.Shutdown(drain)
	if errors.Is(err, context.DeadlineExceeded) {
		cancelRequests()
		err = srv.Close()
	}
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	if err != nil {
		return fmt.Errorf("close status socket: %w", err)
	}
	return nil
}

func handler(h *Hub, c Control) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) { serveStatus(w, r, h) })
	mux.HandleFunc("GET /v1/events", func(w http.ResponseWriter, r *http.Request) { serveEvents(w, r, h) })
	mux.HandleFunc("POST /v1/stop", func(w http.ResponseWriter, r *http.Request) {
		var req stopRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&req); err != nil {
			writeError(w, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("read stop request: %w", err)))
			return
		}
		writeResult(w, c.Stop(req.Reason))
	})
	mux.HandleFunc("POST /v1/components/{name}/restart", func(w http.ResponseWriter, r *http.Request) {
		writeResult(w, c.Restart(r.PathValue("name")))
	})
	mux.HandleFunc("POST /v1/forwards", func(w http.ResponseWriter, r *http.Request) { serveForward(w, r, c.AddForward) })
	mux.HandleFunc("DELETE /v1/forwards", func(w http.ResponseWriter, r *http.Request) { serveForward(w, r, c.RemoveForward) })
	return mux
}

type forwardRequest struct {
	Forward string `json:"forward"`
}

type forwardAnswer struct {
	Owner string `json:"owner"`
}

func serveForward(w http.ResponseWriter, r *http.Request, do func(string) (string, error)) {
	var req forwardRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&req); err != nil {
		writeError(w, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("read forward: %w", err)))
		return
	}
	owner, err := do(req.Forward)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, forwardAnswer{owner})
}

type stopRequest struct {
	Reason string `json:"reason"`
}

func serveStatus(w http.ResponseWriter, r *http.Request, h *Hub) {
	q := r.URL.Query()
	if !q.Has("wait") {
		writeJSON(w, http.StatusOK, h.Snapshot())
		return
	}
	since, err := strconv.ParseUint(q.Get("wait"), 10, 64)
	if err != nil {
		writeError(w, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("read wait: %w", err)))
		return
	}
	timeout := maxLongPoll
	if q.Has("timeout") {
		d, err := time.ParseDuration(q.Get("timeout"))
		if err != nil {
			writeError(w, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("read timeout: %w", err)))
			return
		}
		timeout = min(d, maxLongPoll)
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	s, _ := h.Wait(ctx, since) // the picture is right either way: after the timeout it is the unchanged one
	writeJSON(w, http.StatusOK, s)
}

func serveEvents(w http.ResponseWriter, r *http.Request, h *Hub) {
	w.Header().Set("Content-Type", "application/jsonl")
	enc := json.NewEncoder(w)
	if follow, _ := strconv.ParseBool(r.URL.Query().Get("follow")); !follow {
		for _, e := range h.Events() {
			if enc.Encode(e) != nil {
				return
			}
		}
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	flush := http.NewResponseController(w)
	events := h.Subscribe(ctx, true)
	// The headers tell the client that it is connected even while nothing happens.
	if flush.Flush() != nil {
		return
	}
	for e := range events {
		if enc.Encode(e) != nil || flush.Flush() != nil {
			return
		}
	}
}

func writeResult(w http.ResponseWriter, err error) {
	if err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

func writeError(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	if errors.Is(err, errdefs.ErrConfig) {
		code = http.StatusBadRequest
	}
	writeJSON(w, code, errdefs.ReportOf(err))
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// The client went away: there is nobody to tell.
	_ = json.NewEncoder(w).Encode(v)
}
