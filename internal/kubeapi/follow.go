package kubeapi

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion/queryparams"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// overtime is how much longer than requested a watch may last. It ends a watch of a server that sends nothing.
const overtime = 30 * time.Second

// apiObject is a pointer to an object of the API.
type apiObject[T any] interface {
	*T
	runtime.Object
	metav1.Object
}

// follower tracks one collection by list and watch with client-go's reflector. Its functions are called one at a time, in order.
type follower[T any, P apiObject[T]] struct {
	c        *conn
	path     string
	selector string // field selector, may be empty
	labels   string // label selector, may be empty
	metadata bool   // request only the metadata of objects
	replace  func([]P)
	changed  func(P)
	deleted  func(P)
	fault    func(error) // receives every retried error; may be nil

	mu    sync.Mutex
	ended bool
}

// run tracks the collection until ctx ends. It returns ctx's error.
func (f *follower[T, P]) run(ctx context.Context) error {
	source := unstreamed{&cache.ListWatch{ListWithContextFunc: f.list, WatchFuncWithContext: f.watch}}
	// The zero logger discards: failed logs to the client's logger.
	r := cache.NewReflectorWithOptions(source, P(new(T)), f, cache.ReflectorOptions{
		Name: f.path, Backoff: &f.c.followBackoff, Logger: &klog.Logger{},
	})
	r.RunWithContext(klog.NewContext(ctx, klog.Logger{}))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true // a list that was canceled may still be returning
	return context.Cause(ctx)
}

// unstreamed makes the reflector list in pages instead of by a stream, whose size could not be limited.
type unstreamed struct{ *cache.ListWatch }

func (unstreamed) IsWatchListSemanticsUnSupported() bool { return true }

// page is one page of a list.
type page[T any] struct {
	metav1.TypeMeta
	metav1.ListMeta `json:"metadata"`
	Items           []T `json:"items"`
}

func (p *page[T]) DeepCopyObject() runtime.Object { c := *p; return &c }

func (f *follower[T, P]) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	o.ResourceVersion, o.ResourceVersionMatch = "", "" // a consistent read
	got := &page[T]{}
	r, err := f.request(o)
	if err == nil {
		err = f.c.do(ctx, r, got)
	}
	for i := range got.Items {
		P(&got.Items[i]).SetManagedFields(nil)
	}
	return got, f.failed(ctx, err)
}

func (f *follower[T, P]) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	limit := overtime
	if o.TimeoutSeconds != nil {
		limit += time.Duration(*o.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	r, err := f.request(o)
	var body io.ReadCloser
	if err == nil {
		body, err = f.c.stream(ctx, r)
	}
	if err != nil {
		defer cancel()
		return nil, f.failed(ctx, err)
	}
	events := bound(body, maxEvent)
	d := &eventDecoder[T, P]{f: f, ctx: ctx, cancel: cancel, body: body, events: events, json: json.NewDecoder(events)}
	return watch.NewStreamWatcher(d, apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "watch")), nil
}

// request returns the request for o. An object that no longer matches a selector is reported as deleted.
func (f *follower[T, P]) request(o metav1.ListOptions) (request, error) {
	o.FieldSelector, o.LabelSelector = f.selector, f.labels
	query, err := queryparams.Convert(&o)
	r := request{method: http.MethodGet, path: f.path, query: query}
	switch {
	case f.metadata && o.Watch:
		r.accept = mimeMetadata
	case f.metadata:
		r.accept = mimeMetadataList
	}
	return r, err
}

// failed reports err, which is retried unless ctx has ended, and returns it.
func (f *follower[T, P]) failed(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	log := f.c.log.WithError(err).WithField("path", f.path)
	if expired(err) {
		log.Info("watch expired; listing again")
	} else {
		log.Debug("watch interrupted")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil && !f.ended {
		f.fault(err)
	}
	return err
}

// Add implements cache.ReflectorStore.
func (f *follower[T, P]) Add(obj any) error { return f.call(f.changed, obj) }

// Update implements cache.ReflectorStore.
func (f *follower[T, P]) Update(obj any) error { return f.call(f.changed, obj) }

// Delete implements cache.ReflectorStore.
func (f *follower[T, P]) Delete(obj any) error { return f.call(f.deleted, obj) }

// Resync implements cache.ReflectorStore.
func (f *follower[T, P]) Resync() error { return nil }

// Replace implements cache.ReflectorStore.
func (f *follower[T, P]) Replace(all []any, _ string) error {
	items := make([]P, len(all))
	for i := range all {
		items[i] = all[i].(P)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replace(items)
	return nil
}

func (f *follower[T, P]) call(fn func(P), obj any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(obj.(P))
	return nil
}

// eventDecoder reads the events of one watch.
type eventDecoder[T any, P apiObject[T]] struct {
	f      *follower[T, P]
	ctx    context.Context
	cancel context.CancelFunc
	body   io.ReadCloser
	events *boundedReader
	json   *json.Decoder
}

// Decode implements watch.Decoder. Every error ends the watch, which continues with the last version that was read.
func (d *eventDecoder[T, P]) Decode() (watch.EventType, runtime.Object, error) {
	var ev struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	d.events.reset()
	if err := d.json.Decode(&ev); err != nil {
		if err != io.EOF {
			_ = d.f.failed(d.ctx, err)
		}
		return "", nil, io.EOF
	}
	if ev.Type == watch.Error {
		st := &metav1.Status{}
		if err := json.Unmarshal(ev.Object, st); err != nil {
			return "", nil, d.f.failed(d.ctx, err)
		}
		_ = d.f.failed(d.ctx, &apierrors.StatusError{ErrStatus: *st})
		return ev.Type, st, nil
	}
	obj := P(new(T))
	if err := json.Unmarshal(ev.Object, obj); err != nil {
		return "", nil, d.f.failed(d.ctx, err)
	}
	obj.SetManagedFields(nil)
	return ev.Type, obj, nil
}

// Close implements watch.Decoder.
func (d *eventDecoder[T, P]) Close() {
	d.cancel()
	_ = d.body.Close()
}

// expired reports whether the server no longer has the changes since the requested version.
func expired(err error) bool { return code(err) == http.StatusGone || apierrors.IsResourceExpired(err) }

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// tracker follows a collection and reports only what the caller uses of its objects.
type tracker[T any, P apiObject[T], V any] struct {
	// of returns what is reported of an object, and whether the object is relevant.
	of func(P) (V, bool)
	// listed receives all relevant objects, and set each one that has changed later. gone means that it was deleted or is not
	// relevant any more.
	listed func([]V)
	set    func(v V, gone bool)
}

// run follows the collection until ctx ends. It returns ctx's error.
func (t tracker[T, P, V]) run(ctx context.Context, c *conn, path, selector string) error {
	type entry struct {
		uid   types.UID
		value V
	}
	known := map[types.NamespacedName]entry{}
	f := follower[T, P]{
		c: c, path: path, selector: selector,
		replace: func(all []P) {
			clear(known)
			list := make([]V, 0, len(all))
			for _, o := range all {
				if v, relevant := t.of(o); relevant {
					known[nameOf(o)] = entry{o.GetUID(), v}
					list = append(list, v)
				}
			}
			t.listed(list)
		},
		changed: func(o P) {
			v, relevant := t.of(o)
			old, there := known[nameOf(o)]
			switch {
			case relevant && (!there || !reflect.DeepEqual(old.value, v)):
				known[nameOf(o)] = entry{o.GetUID(), v}
				t.set(v, false)
			case !relevant && there:
				delete(known, nameOf(o))
				t.set(v, true)
			}
		},
		deleted: func(o P) {
			// An unknown object was reported before, or was replaced by another one of the same name.
			if old, there := known[nameOf(o)]; there && old.uid == o.GetUID() {
				delete(known, nameOf(o))
				v, _ := t.of(o)
				t.set(v, true)
			}
		},
	}
	return f.run(ctx)
}
