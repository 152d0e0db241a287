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

	"github.com/rootlessnode/rootlessnode/internal/localsock"
	"github.com/rootlessnode/rootlessnode/internal/promtext"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const (
	// maxLongPoll limits ?timeout= of a status request, so that an abandoned client does not hold a connection for long.
	maxLongPoll = 10 * time.Minute
	// drainTime is how long Serve waits for open requests after ctx has ended.
	drainTime = time.Second
	// maxBody is the maximum size of a request body in bytes, maxConfig that of a config.
	maxBody   = 64 << 10
	maxConfig = 2 << 20
)

// Control has the operations on the node that the socket offers. The methods start an operation and return without waiting for its
// end.
type Control interface {
	// Stop starts the stop of the node. The pods have at most podLimit, if it is greater than zero, and at most timeouts.podStop.
	Stop(reason string, podLimit time.Duration) error
	// Restart ends a component so that the supervisor starts it again. It returns an error of class errdefs.ErrConfig if there is no
	// such component.
	Restart(component string) error
	// Reload applies a complete config, a config.NodeConfig as JSON, and returns the components that it restarts because of it. It
	// returns an error of class errdefs.ErrConfig if the node must be started again for a change.
	Reload(config json.RawMessage) (restarted []string, err error)
	// AddForward adds a manual forward and returns the Owner of its ports in Status.Ports, which shows whether the ports are open. It
	// returns an error of class errdefs.ErrConfig if forward is malformed.
	AddForward(forward string) (owner string, err error)
	// RemoveForward removes a manual forward and returns the Owner of its ports.
	RemoveForward(forward string) (owner string, err error)
	// Metrics returns the metrics of the node in the text format of Prometheus.
	Metrics(ctx context.Context) ([]byte, error)
	// ResourceUsage returns the resource usage of the node and its containers, in the text format of Prometheus and with the names
	// of the kubelet's metrics.
	ResourceUsage(ctx context.Context) ([]byte, error)
}

// Listen creates the socket at path for Serve, with mode 0600 in a directory with mode 0700. See localsock.Listen.
func Listen(path string) (*net.UnixListener, error) { return localsock.Listen(path) }

// Serve serves HTTP on l until ctx ends, and closes l:
//
//	GET    /v1/status                    the status; ?wait=VERSION waits for a change
//	GET    /v1/events                    the events as JSON lines; ?follow=true continues with new events
//	POST   /v1/stop                      Control.Stop
//	POST   /v1/components/NAME/restart   Control.Restart
//	POST   /v1/reload                    Control.Reload
//	POST   /v1/forwards                  Control.AddForward
//	DELETE /v1/forwards                  Control.RemoveForward
//	GET    /metrics                      Control.Metrics
//	GET    /metrics/resource             Control.ResourceUsage
//
// Serve accepts only clients with the uid of this process in its user namespace; on the host, that is the account of the node.
//
// Close the hub before ctx ends, so that clients that follow the events get the last ones.
//
// Runs in: child (node role).
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
			writeError(w, errdefs.Config("read stop request: %w", err))
			return
		}
		writeResult(w, c.Stop(req.Reason, req.PodLimit))
	})
	mux.HandleFunc("POST /v1/components/{name}/restart", func(w http.ResponseWriter, r *http.Request) {
		writeResult(w, c.Restart(r.PathValue("name")))
	})
	mux.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, r *http.Request) {
		var cfg json.RawMessage
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxConfig)).Decode(&cfg); err != nil {
			writeError(w, errdefs.Config("read config: %w", err))
			return
		}
		restarted, err := c.Reload(cfg)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, reloadResponse{restarted})
	})
	mux.HandleFunc("POST /v1/forwards", func(w http.ResponseWriter, r *http.Request) { serveForward(w, r, c.AddForward) })
	mux.HandleFunc("DELETE /v1/forwards", func(w http.ResponseWriter, r *http.Request) { serveForward(w, r, c.RemoveForward) })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) { serveMetrics(w, r, c.Metrics) })
	mux.HandleFunc("GET /metrics/resource", func(w http.ResponseWriter, r *http.Request) { serveMetrics(w, r, c.ResourceUsage) })
	return mux
}

func serveMetrics(w http.ResponseWriter, r *http.Request, read func(context.Context) ([]byte, error)) {
	text, err := read(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", promtext.ContentType)
	_, _ = w.Write(text) // an error means that the client has closed the connection
}

type reloadResponse struct {
	Restarted []string `json:"restarted"`
}

type forwardRequest struct {
	Forward string `json:"forward"`
}

type forwardResponse struct {
	Owner string `json:"owner"`
}

func serveForward(w http.ResponseWriter, r *http.Request, do func(string) (string, error)) {
	var req forwardRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&req); err != nil {
		writeError(w, errdefs.Config("read forward: %w", err))
		return
	}
	owner, err := do(req.Forward)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, forwardResponse{owner})
}

type stopRequest struct {
	Reason string `json:"reason"`
	// PodLimit is in nanoseconds.
	PodLimit time.Duration `json:"podLimit,omitempty"`
}

func serveStatus(w http.ResponseWriter, r *http.Request, h *Hub) {
	q := r.URL.Query()
	if !q.Has("wait") {
		writeJSON(w, http.StatusOK, h.Snapshot())
		return
	}
	since, err := strconv.ParseUint(q.Get("wait"), 10, 64)
	if err != nil {
		writeError(w, errdefs.Config("read wait: %w", err))
		return
	}
	timeout := maxLongPoll
	if q.Has("timeout") {
		d, err := time.ParseDuration(q.Get("timeout"))
		if err != nil {
			writeError(w, errdefs.Config("read timeout: %w", err))
			return
		}
		timeout = min(d, maxLongPoll)
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	s, _ := h.Wait(ctx, since) // after the timeout, s is the unchanged status
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
	// Send the headers now, so that the client sees the connection before the first event.
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
	// An error means that the client has closed the connection.
	_ = json.NewEncoder(w).Encode(v)
}
