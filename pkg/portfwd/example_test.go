package portfwd_test

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/rootless-containers/rootlesskit/v3/pkg/api"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port"

	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
)

// oneService replaces the watch of Services that a distribution has: it sends the complete list and then waits for changes.
type oneService struct{}

func (oneService) Run(ctx context.Context, sink portfwd.Sink) error {
	sink.Replace([]portfwd.Service{{
		Namespace: "default", Name: "web", Type: "NodePort",
		Ports: []portfwd.ServicePort{{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080}},
	}})
	<-ctx.Done()
	return ctx.Err()
}

// kit replaces RootlessKit in this example; a program uses portfwd.Dial("$ROOTLESSKIT_STATE_DIR/api.sock") instead.
type kit struct {
	mu    sync.Mutex
	ports []port.Status
}

func (k *kit) Info(context.Context) (*api.Info, error) {
	return &api.Info{
		NetworkDriver: &api.NetworkDriverInfo{ChildIP: net.IPv4(10, 0, 2, 100)},
		PortDriver:    &api.PortDriverInfo{Driver: "builtin", Protos: []string{"tcp4", "tcp6", "udp4", "udp6"}},
	}, nil
}

func (k *kit) ListPorts(context.Context) ([]port.Status, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]port.Status(nil), k.ports...), nil
}

func (k *kit) AddPort(_ context.Context, s port.Spec) (*port.Status, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := port.Status{ID: len(k.ports) + 1, Spec: s}
	k.ports = append(k.ports, st)
	fmt.Printf("open %s %s:%d to %s:%d\n", s.Proto, s.ParentIP, s.ParentPort, s.ChildIP, s.ChildPort)
	return &st, nil
}

func (k *kit) RemovePort(_ context.Context, id int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, st := range k.ports {
		if st.ID == id {
			fmt.Printf("close %s:%d\n", st.Spec.ParentIP, st.Spec.ParentPort)
			k.ports = append(k.ports[:i], k.ports[i+1:]...)
		}
	}
	return nil
}

func ExampleNew() {
	ctx, cancel := context.WithCancel(context.Background())
	var forwarder *portfwd.Forwarder
	forwarder, err := portfwd.New(portfwd.Options{
		Manager: &kit{},
		Source:  oneService{},
		Config:  portfwd.Config{NodePorts: true},
		OnChange: func() {
			for _, p := range forwarder.Status() {
				if p.State == portfwd.StateOpen {
					fmt.Println(p.Owner, p.State)
					cancel()
				}
			}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := forwarder.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// open tcp4 127.0.0.1:30080 to 10.0.2.100:30080
	// default/web/http open
	// close 127.0.0.1:30080
}
