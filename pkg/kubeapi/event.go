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
	// eventQuiet is how long the same Event is not told again.
	eventQuiet = time.Minute
	// maxEvents bounds the memory of Events told; the one told longest ago is forgotten first.
	maxEvents = 512
)

// Event types as Kubernetes has them.
const (
	EventNormal  = corev1.EventTypeNormal
	EventWarning = corev1.EventTypeWarning
)

// ObjectRef names the object that an Event is about. Namespace is empty for a Node, whose UID is by convention its name
// (the kubelet does the same, and `kubectl describe node` looks for it).
type ObjectRef struct{ Kind, Namespace, Name, UID string }

// Event is what can be told about an object.
type Event struct {
	Object ObjectRef
	// Type is EventNormal or EventWarning.
	Type string
	// Reason is one word in UpperCamelCase; Message is for people.
	Reason, Message string
	// Host is the Node's name, shown as the Event's source; may be empty.
	Host string
}

type told struct {
	namespace, name string
	count           int32
	last            time.Time
}

// eventMemory remembers which Events exist, so that a repetition raises a count and does not fill the datastore.
type eventMemory struct {
	mu   sync.Mutex
	told map[Event]*told
}

// Event records ev with the API server. An equal Event is not told again within a minute; after that it raises the
// count of the first one.
func (c *Client) Event(ctx context.Context, ev Event) error {
	now := c.now()
	t, again := c.events.take(ev, now)
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
		c.events.forget(ev)
		return fmt.Errorf("record event %s on %s %s/%s: %w", ev.Reason, ev.Object.Kind, ev.Object.Namespace, ev.Object.Name, err)
	}
	return nil
}

func (c *Client) recount(ctx context.Context, t *told, now time.Time) error {
	body, err := json.Marshal(map[string]any{"count": t.count, "lastTimestamp": metav1.NewTime(now)})
	if err != nil {
		return err
	}
	return c.do(ctx, request{
		method: http.MethodPatch, path: eventsPath(t.namespace) + "/" + url.PathEscape(t.name),
		contentType: mimeMergePatch, body: body,
	}, nil)
}

func (c *Client) createEvent(ctx context.Context, ev Event, t *told, now time.Time) error {
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

// take decides what is to be done about ev: nothing (nil), create it, or raise its count (again).
func (m *eventMemory) take(ev Event, now time.Time) (t *told, again bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.told[ev]; old != nil {
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
	if m.told == nil {
		m.told = map[Event]*told{}
	}
	if len(m.told) >= maxEvents {
		m.dropOldest()
	}
	// As the usual recorders do: the object's name and a time stamp that makes it unique.
	n := &told{namespace: ns, name: fmt.Sprintf("%s.%x", ev.Object.Name, now.UnixNano()), count: 1, last: now}
	m.told[ev] = n
	c := *n
	return &c, false
}

func (m *eventMemory) forget(ev Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.told, ev)
}

func (m *eventMemory) dropOldest() {
	var (
		oldest Event
		when   time.Time
	)
	for ev, t := range m.told {
		if when.IsZero() || t.last.Before(when) {
			oldest, when = ev, t.last
		}
	}
	delete(m.told, oldest)
}
