package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// pageSize is the number of objects in one page of a list.
	pageSize = 500
	// watchTime is the requested duration of a watch. overtime is how much longer the client waits for a server that sends
	// nothing.
	watchTime = 5 * time.Minute
	overtime  = 30 * time.Second
	// steadyTime is the time after which the end of a watch is considered normal.
	steadyTime = 2 * time.Second
	// relistAfter is the number of consecutive refused watches after which the list is read again, in case the resource
	// version itself causes the refusal, for example after etcd was restored.
	relistAfter = 3
)

// follower tracks one collection by list and watch, as described in
// https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes. Its functions are called from
// one goroutine, in order.
type follower[T any] struct {
	c        *Client
	path     string
	selector string // field selector, may be empty
	labels   string // label selector, may be empty
	version  func(*T) string
	replace  func([]T)
	changed  func(*T)
	deleted  func(*T)
	fault    func(error) // receives every retried error; may be nil
}

// run tracks the collection until ctx ends. It returns ctx's error.
func (f *follower[T]) run(ctx context.Context) error {
	w := waiter{backoff: f.c.followBackoff}
	version, refused := "", 0
	for {
		err := f.once(ctx, &version, &w)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			refused = 0
			continue
		}
		log := f.c.log.WithError(err).WithField("path", f.path)
		if expired(err) {
			log.Info("watch expired; listing again")
		} else {
			log.Debug("watch interrupted")
		}
		if f.fault != nil {
			f.fault(err)
		}
		refused++
		if expired(err) || refused%relistAfter == 0 {
			version = ""
		}
		if !w.wait(ctx, err) {
			return context.Cause(ctx)
		}
	}
}

// once lists if version is empty, then watches until the watch ends. A normal end is not an error.
func (f *follower[T]) once(ctx context.Context, version *string, w *waiter) error {
	if *version == "" {
		items, v, err := f.list(ctx)
		if err != nil {
			return err
		}
		f.replace(items)
		*version = v
	}
	began := time.Now()
	seen, err := f.watch(ctx, version)
	if seen || time.Since(began) >= steadyTime {
		w.reset()
	}
	if err == nil && time.Since(began) < steadyTime {
		return fmt.Errorf("watch %s: ended after %s", f.path, time.Since(began).Round(time.Millisecond))
	}
	return err
}

type listMeta struct {
	ResourceVersion string `json:"resourceVersion"`
	Continue        string `json:"continue"`
}

func (f *follower[T]) list(ctx context.Context) ([]T, string, error) {
	var all []T
	q := url.Values{"limit": {strconv.Itoa(pageSize)}}
	f.addSelectors(q)
	for {
		var page struct {
			Metadata listMeta `json:"metadata"`
			Items    []T      `json:"items"`
		}
		if err := f.c.do(ctx, request{method: http.MethodGet, path: f.path, query: q}, &page); err != nil {
			return nil, "", err
		}
		all = append(all, page.Items...)
		if page.Metadata.Continue == "" {
			return all, page.Metadata.ResourceVersion, nil
		}
		q.Set("continue", page.Metadata.Continue)
	}
}

// addSelectors adds the selectors to a query. An object that no longer matches one is reported as deleted.
func (f *follower[T]) addSelectors(q url.Values) {
	if f.selector != "" {
		q.Set("fieldSelector", f.selector)
	}
	if f.labels != "" {
		q.Set("labelSelector", f.labels)
	}
}

type watchEvent struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// watch continues from *version and updates it. seen reports whether any event arrived.
func (f *follower[T]) watch(ctx context.Context, version *string) (seen bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchTime+overtime)
	defer cancel()
	q := url.Values{
		"watch":               {"1"},
		"resourceVersion":     {*version},
		"allowWatchBookmarks": {"true"},
		"timeoutSeconds":      {strconv.Itoa(int(watchTime / time.Second))},
	}
	f.addSelectors(q)
	body, err := f.c.stream(ctx, request{method: http.MethodGet, path: f.path, query: q})
	if err != nil {
		return false, err
	}
	defer body.Close()
	events := bound(body, maxEvent)
	dec := json.NewDecoder(events)
	for {
		var ev watchEvent
		events.reset()
		if err := dec.Decode(&ev); err != nil {
			if errors.Is(err, io.EOF) {
				return seen, nil
			}
			return seen, fmt.Errorf("watch %s: %w", f.path, err)
		}
		if err := f.event(ev, version); err != nil {
			return seen, fmt.Errorf("watch %s: %w", f.path, err)
		}
		seen = true
	}
}

func (f *follower[T]) event(ev watchEvent, version *string) error {
	if ev.Type == "ERROR" {
		var st metav1.Status
		if err := json.Unmarshal(ev.Object, &st); err != nil {
			return fmt.Errorf("decode error event: %w", err)
		}
		return &apierrors.StatusError{ErrStatus: st}
	}
	obj := new(T)
	if err := json.Unmarshal(ev.Object, obj); err != nil {
		return fmt.Errorf("decode %s event: %w", ev.Type, err)
	}
	switch ev.Type {
	case "ADDED", "MODIFIED":
		f.changed(obj)
	case "DELETED":
		f.deleted(obj)
	case "BOOKMARK":
	default:
		return fmt.Errorf("unknown event type %q", ev.Type)
	}
	if v := f.version(obj); v != "" {
		*version = v
	}
	return nil
}

// expired reports whether the server no longer has the changes since the requested version.
func expired(err error) bool { return code(err) == http.StatusGone || apierrors.IsResourceExpired(err) }
