package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// eventQuiet is the time in which an equal Event is not recorded again.
	eventQuiet = time.Minute
	// maxEvents bounds the number of remembered Events; the one recorded longest ago is dropped first.
	maxEvents = 512
)

// Event types of Kubernetes.
const (
	EventNormal  = corev1.EventTypeNormal
	EventWarning = corev1.EventTypeWarning
)

// ObjectRef is the object of an Event. For a Node, Namespace is empty and UID is by convention the name: the kubelet does
// the same, and `kubectl describe node` searches for it.
type ObjectRef struct{ Kind, Namespace, Name, UID string }

// Event is an Event about an object.
type Event struct {
	Object ObjectRef
	// Type is EventNormal or EventWarning.
	Type string
	// Reason is one word in UpperCamelCase; Message is the text for users.
	Reason, Message string
	// Host is the Node's name, the source of the Event; may be empty.
	Host string
}

type eventRecord struct {
	namespace, name string
	count           int32
	last            time.Time
}

// eventCache remembers recorded Events, so that a repetition increases a count instead of creating another object.
type eventCache struct {
	mu       sync.Mutex
	recorded map[Event]*eventRecord
}

// Event records ev in the API server. An equal Event is ignored for a minute; after that it increases the count of the first
// one.
func (c events) Event(ctx context.Context, ev Event) error {
	now := c.now()
	t, again := c.cache.record(ev, now)
	if t == nil {
		return nil
	}
	var err error
	if again {
		err = c.recount(ctx, t, now)
		if apierrors.IsNotFound(err) { // Events expire after an hour
			again = false
		}
	}
	if !again {
		err = c.createEvent(ctx, ev, t, now)
	}
	if err != nil {
		c.cache.forget(ev)
		return fmt.Errorf("record event %s on %s %s/%s: %w", ev.Reason, ev.Object.Kind, ev.Object.Namespace, ev.Object.Name, err)
	}
	return nil
}

func (c events) recount(ctx context.Context, t *eventRecord, now time.Time) error {
	body, err := json.Marshal(map[string]any{"count": t.count, "lastTimestamp": metav1.NewTime(now)})
	if err != nil {
		return err
	}
	return c.do(ctx, request{
		method: http.MethodPatch, path: eventsPath(t.namespace) + "/" + url.PathEscape(t.name),
		contentType: mimeMergePatch, body: body,
	}, nil)
}

func (c events) createEvent(ctx context.Context, ev Event, t *eventRecord, now time.Time) error {
	obj := corev1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: t.name},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: ev.Object.Kind, Namespace: ev.Object.Namespace, Name: ev.Object.Name,
			UID: types.UID(ev.Object.UID),
		},
		Type: ev.Type, Reason: ev.Reason, Message: ev.Message, Count: t.count,
		FirstTimestamp: metav1.NewTime(now), LastTimestamp: metav1.NewTime(now),
		Source:              corev1.EventSource{Component: FieldManager, Host: ev.Host},
		ReportingController: FieldManager,
		ReportingInstance:   ev.Host,
	}
	body, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	return c.do(ctx, request{
		method: http.MethodPost, path: eventsPath(t.namespace), contentType: mimeJSON, body: body,
	}, nil)
}

func eventsPath(namespace string) string {
	return "/api/v1/namespaces/" + url.PathEscape(namespace) + "/events"
}

// record decides how to handle ev: ignore it (nil), create it, or increase its count (again).
func (m *eventCache) record(ev Event, now time.Time) (t *eventRecord, again bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.recorded[ev]; old != nil {
		if now.Sub(old.last) < eventQuiet {
			return nil, false
		}
		old.count++
		old.last = now
		c := *old
		return &c, true
	}
	ns := ev.Object.Namespace
	if ns == "" {
		ns = metav1.NamespaceDefault
	}
	if m.recorded == nil {
		m.recorded = map[Event]*eventRecord{}
	}
	if len(m.recorded) >= maxEvents {
		m.dropOldest()
	}
	// The name has the format of client-go's recorder: the object's name and a time stamp that makes it unique.
	n := &eventRecord{namespace: ns, name: fmt.Sprintf("%s.%x", ev.Object.Name, now.UnixNano()), count: 1, last: now}
	m.recorded[ev] = n
	c := *n
	return &c, false
}

func (m *eventCache) forget(ev Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.recorded, ev)
}

func (m *eventCache) dropOldest() {
	var (
		oldest Event
		when   time.Time
	)
	for ev, t := range m.recorded {
		if when.IsZero() || t.last.Before(when) {
			oldest, when = ev, t.last
		}
	}
	delete(m.recorded, oldest)
}
