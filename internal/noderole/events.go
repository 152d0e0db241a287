package noderole

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
)

// eventRecorder sends Events to the API server in the background, without retries. The status has the same information.
type eventRecorder struct {
	client  clientFunc
	host    string        // the node's name
	timeout time.Duration // of one request
	log     logrus.FieldLogger
	sending sync.WaitGroup
}

func (r *eventRecorder) record(ev kubeapi.Event) {
	c, err := r.client()
	if err != nil {
		return
	}
	ev.Host = r.host
	r.sending.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
		defer cancel()
		if err := c.Event(ctx, ev); err != nil {
			r.log.WithError(err).Debug("record an event")
		}
	})
}

// recordPort records an Event on the Service or pod of a port.
func (r *eventRecorder) recordPort(e portfwd.Event) {
	if e.Owner.Namespace == "" {
		return // a static or manual forward
	}
	kind := kubeapi.EventNormal
	if e.Warning {
		kind = kubeapi.EventWarning
	}
	r.record(kubeapi.Event{
		Object: kubeapi.ObjectRef{Kind: e.Owner.Kind, Namespace: e.Owner.Namespace, Name: e.Owner.Name, UID: e.Owner.UID},
		Type:   kind, Reason: e.Reason, Message: e.Message,
	})
}

// wait waits until all Events have been sent or have failed.
func (r *eventRecorder) wait() { r.sending.Wait() }
