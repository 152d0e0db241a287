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
	// pageSize is how many objects one page of a list holds.
	pageSize = 500
	// watchTime is what the server is asked to end a watch after; overtime is how much longer we believe in a watch
	// whose server has stopped talking.
	watchTime = 5 * time.Minute
	overtime  = 30 * time.Second
	// steadyTime is how long a watch must have lasted for its end to be taken as ordinary.
	steadyTime = 2 * time.Second
	// relistAfter is how many watches in a row may be refused before the list is fetched anew, in case the version we
	// go on from is itself the trouble (a restored etcd, for one).
	relistAfter = 3
)

// follower keeps a picture of one collection by list and watch, as described in
// https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
// Its functions are called from one goroutine, in order.
type follower[T any] struct {
	c        *Client
	path     string
	selector string // field selector, may be empty
	labels   string // label selector, may be empty
	version  func(*T) string
	replace  func([]T)
	changed  func(*T)
	deleted  func(*T)
	fault    func(error) // every fault that is retried; may be nil
}

// run follows until ctx ends and returns its error.
func (f *follower[T]) run(ctx context.Context) error {
	w := waiter{pace: f.c.followPace}
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
		if gone(err) {
			log.Info("watch is too old to go on, listing anew")
		} else {
			log.Debug("watch interrupted")
		}
		if f.fault != nil {
			f.fault(err)
		}
		refused++
		if gone(err) || refused%relistAfter == 0 {
			version = ""
		}
		if !w.wait(ctx, err) {
			return context.Cause(ctx)
		}
	}
}

// once lists if version is empty, then watches until the watch ends. An orderly end is no error.
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
	f.narrow(q)
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

// narrow adds the selectors. An object that no longer fits one is told of as deleted.
func (f *follower[T]) narrow(q url.Values) {
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

// watch goes on from *version and moves it forward. seen tells whether anything at all arrived.
func (f *follower[T]) watch(ctx context.Context, version *string) (seen bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchTime+overtime)
	defer cancel()
	q := url.Values{
		"watch":               {"1"},
		"resourceVersion":     {*version},
		"allowWatchBookmarks": {"true"},
		"timeoutSeconds":      {strconv.Itoa(int(watchTime / time.Second))},
	}
	f.narrow(q)
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

// gone tells that the version we would go on from is no longer kept.
func gone(err error) bool { return code(err) == http.StatusGone || apierrors.IsResourceExpired(err) }
