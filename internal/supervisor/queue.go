package supervisor

import "sync"

// queue delivers transitions in order. The sender neither waits for the receiver nor holds a lock during delivery.
type queue struct {
	deliver func(Transition)
	wake    chan struct{}

	mu    sync.Mutex
	items []Transition
	ended bool
}

func newQueue(deliver func(Transition)) *queue {
	return &queue{deliver: deliver, wake: make(chan struct{}, 1)}
}

func (q *queue) add(t Transition) {
	q.mu.Lock()
	q.items = append(q.items, t)
	q.mu.Unlock()
	q.signal()
}

// end makes serve return after it has delivered everything added before.
func (q *queue) end() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) serve() {
	for {
		q.mu.Lock()
		items, ended := q.items, q.ended
		q.items = nil
		q.mu.Unlock()
		for _, t := range items {
			q.deliver(t)
		}
		if len(items) > 0 {
			continue
		}
		if ended {
			return
		}
		<-q.wake
	}
}
