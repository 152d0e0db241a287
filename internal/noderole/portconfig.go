package noderole

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/filewatch"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
)

// portConfig holds the inputs of the forwarder's configuration that do not come from the API server: the node's config,
// the host's addresses and manual forwards. Its methods may be called concurrently.
type portConfig struct {
	cfg     *config.NodeConfig
	rt      layout.Runtime
	data    layout.Data
	log     logrus.FieldLogger
	address *nodeAddress
	ipv6    netip.Addr // the node's address if network.ipv6 is set

	mu  sync.Mutex
	set func(portfwd.Config) // nil if no forwarder runs
	// onFaults is called with the state of the forwarded ports in the parent. It may be nil.
	onFaults func(layout.Forwarding)
	host     []portfwd.HostAddress
	manual   []string // canonical, as config.Forward writes them
	warned   []string // interfaces without an address that were reported
}

// run starts a forwarder with the current configuration and applies changes until stop is called.
func (d *portConfig) run(start func(portfwd.Config) error, set func(portfwd.Config), onFaults func(layout.Forwarding)) (stop func(), err error) {
	hosts, err := filewatch.New(d.rt.HostAddresses(), filewatch.JSON[[]layout.HostAddress])
	if err != nil {
		return nil, err
	}
	faults, err := filewatch.New(d.rt.PortFaults(), filewatch.JSON[layout.Forwarding])
	if err != nil {
		hosts.Close()
		return nil, err
	}
	var followed sync.WaitGroup
	end := func() {
		hosts.Close()
		faults.Close()
		followed.Wait()
	}
	if err := d.begin(start, set, onFaults); err != nil {
		end()
		return nil, err
	}
	followed.Go(func() { d.follow(hosts.Changed(), faults.Changed()) })
	return func() {
		end()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.set, d.onFaults = nil, nil
	}, nil
}

// begin starts a forwarder with the current content of the files.
func (d *portConfig) begin(start func(portfwd.Config) error, set func(portfwd.Config), onFaults func(layout.Forwarding)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := errors.Join(d.readHost(), d.readManual()); err != nil {
		return err
	}
	cfg, err := d.config(d.manual)
	if err == nil {
		err = start(cfg)
	}
	if err != nil {
		return err
	}
	d.set, d.onFaults = set, onFaults
	return d.readFaults()
}

// follow applies changes of the host's addresses and of port faults until the channels are closed.
func (d *portConfig) follow(hosts, faults <-chan struct{}) {
	for {
		what, apply := "the host's addresses", func() error { return errors.Join(d.readHost(), d.apply()) }
		var ok bool
		select {
		case _, ok = <-hosts:
		case _, ok = <-faults:
			what, apply = "the port faults", d.readFaults
		}
		if !ok {
			return
		}
		d.mu.Lock()
		err := apply()
		d.mu.Unlock()
		if err != nil {
			d.log.WithError(err).Warn("apply changes of " + what)
		}
	}
}

// readFaults reads the state of the forwarded ports in the parent. The file does not exist before the first fault.
func (d *portConfig) readFaults() error {
	var f layout.Forwarding
	if err := layout.ReadJSON(d.rt.PortFaults(), &f); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the port faults: %w", err)
	}
	if d.onFaults != nil {
		d.onFaults(f)
	}
	return nil
}

// update passes the current configuration to the forwarder.
func (d *portConfig) update() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.apply()
}

// apply is update with d.mu held.
func (d *portConfig) apply() error {
	cfg, err := d.config(d.manual)
	if err == nil && d.set != nil {
		d.set(cfg)
	}
	return err
}

// reload replaces the node's config and passes it to the forwarder. On an error, nothing is changed.
func (d *portConfig) reload(cfg *config.NodeConfig) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.cfg
	d.cfg = cfg
	err := d.apply()
	if err != nil {
		d.cfg = was
	}
	return err
}

func (d *portConfig) readHost() error {
	var list []layout.HostAddress
	if err := layout.ReadJSON(d.rt.HostAddresses(), &list); err != nil {
		return fmt.Errorf("read the host's addresses: %w", err)
	}
	d.host = d.host[:0:0]
	for _, a := range list {
		d.host = append(d.host, portfwd.HostAddress(a))
	}
	return nil
}

// manualForwards is the content of layout.Data.ManualPorts.
type manualForwards struct {
	// Forwards are canonical, as config.Forward writes them.
	Forwards []string `json:"forwards"`
}

// UnmarshalJSON also accepts the list that earlier versions wrote.
func (m *manualForwards) UnmarshalJSON(b []byte) error {
	if json.Unmarshal(b, &m.Forwards) == nil {
		return nil
	}
	type plain manualForwards // without this method
	return json.Unmarshal(b, (*plain)(m))
}

func (d *portConfig) readManual() error {
	var stored manualForwards
	if err := layout.ReadState(d.data.ManualPorts(), &stored); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the manual forwards: %w", err)
	}
	d.manual = stored.Forwards
	return nil
}

// config returns the forwarder's configuration with the given manual forwards.
func (d *portConfig) config(manual []string) (portfwd.Config, error) {
	p, node := d.cfg.Ports, d.address.current()
	c := portfwd.Config{
		NodePorts: p.NodePorts, LoadBalancers: p.LoadBalancers, PodHostPorts: p.PodHostPorts,
		ExternalIPs: len(p.ExternalIPs) > 0, ExternalIPRanges: p.ExternalIPs.Prefixes(), BindAnywhere: p.Annotations.Bind, MaxForwards: p.MaxForwards,
		HostNetworkPods: p.HostNetworkPods, PrivilegedPortOffset: p.PrivilegedPortOffset, PrivilegedPortFallback: p.PrivilegedPortFallback, HostAddresses: d.host,
		BindAddresses: d.bindAddresses(node), ChildIPv6: d.ipv6,
	}
	if !slices.Contains(p.Annotations.Namespaces, config.AllNamespaces) {
		c.AnnotationNamespaces = append([]string{}, p.Annotations.Namespaces...)
	}
	var err error
	if c.PickFirst, c.PickLast, err = config.ParsePickRange(p.PickRange); err != nil {
		return c, fmt.Errorf("ports.pickRange: %w", err)
	}
	for _, f := range catalogue.Forwards(d.cfg, node) {
		c.Static = append(c.Static, portfwd.Static{
			Name: f.Forward.Name, Protocol: f.Proto, HostIP: f.Forward.Address, HostPort: f.Forward.Port, ChildPort: f.Number,
		})
	}
	for _, list := range []struct {
		origin   string
		forwards []string
		manual   bool
	}{{"ports.static", p.Static, false}, {"manual forward", manual, true}} {
		for _, s := range list.forwards {
			f, err := config.ParseForward(s)
			if err != nil {
				return c, fmt.Errorf("%s: %w", list.origin, err)
			}
			c.Static = append(c.Static, statics(f, list.manual)...)
		}
	}
	return c, nil
}

// bindAddresses returns the addresses of ports.bindAddresses. It logs each interface without an address once.
func (d *portConfig) bindAddresses(node netip.Addr) []netip.Addr {
	out := []netip.Addr{}
	for _, entry := range d.cfg.Ports.BindAddresses {
		if entry == config.BindNodeIP && node.IsValid() {
			entry = node.String()
		}
		addrs, err := portfwd.ResolveBind([]string{entry}, d.host)
		if err != nil && !slices.Contains(d.warned, entry) {
			d.warned = append(d.warned, entry)
			d.log.WithError(err).Warn("ports.bindAddresses: not listening on the interface until it has an address")
		}
		out = append(out, addrs...)
	}
	return out
}

// statics returns one static port for each port of a forward. Manual forwards are named as the user wrote them.
// Forwards of the config are named after their port, unless the node picks the host port.
func statics(f config.Forward, manual bool) []portfwd.Static {
	var out []portfwd.Static
	for i := range max(f.Count, 1) {
		s := portfwd.Static{Protocol: f.Proto, HostIP: f.HostIP, ChildPort: f.NodePort + i, Manual: manual}
		if manual || f.HostPort == 0 {
			s.Name = f.String()
		}
		if f.HostPort != 0 {
			s.HostPort = f.HostPort + i
		}
		out = append(out, s)
	}
	return out
}

func manualOwner(forward string) string {
	return portfwd.Owner{Kind: portfwd.KindManual, Name: forward}.String()
}

// forwardHint shows the syntax of forwards.
func forwardHint() errdefs.Hint {
	return errdefs.Do(errdefs.AddForward, "8080:30080").Note("port 8080 of the host to port 30080 of the node").
		Do(errdefs.AddForward, "0.0.0.0:5353:53/udp").Note("on all addresses, UDP").
		Do(errdefs.AddForward, "9000-9009:9000-9009").Note("a range").Do(errdefs.AddForward, "0:8080").Note("the node picks the host port")
}

// add adds a manual forward. Adding an existing forward succeeds.
func (d *portConfig) add(text string) (owner string, err error) {
	f, err := config.ParseForward(text)
	if err != nil {
		return "", errdefs.Config("%w", err).With(forwardHint())
	}
	if d.cfg.Ports.Driver == "none" {
		return "", errdefs.Config("port forwarding is disabled (ports.driver: none)").
			Do(errdefs.Stop).Do(errdefs.Start, "ports.driver=builtin")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.Contains(d.manual, f.String()) {
		return manualOwner(f.String()), nil
	}
	manual := append(slices.Clone(d.manual), f.String())
	c, err := d.config(manual)
	if err == nil {
		err = clash(c)
	}
	if err != nil {
		return "", err
	}
	return manualOwner(f.String()), d.change(manual)
}

// clash returns an error if a manual forward of the configuration conflicts with another forward of it. Pure.
func clash(c portfwd.Config) error {
	var errs []error
	_, warnings := portfwd.Wanted(portfwd.Input{}, c)
	for _, w := range warnings {
		if w.Owner.Kind == portfwd.KindManual {
			errs = append(errs, errors.New(w.Message))
		}
	}
	return errdefs.Class(errdefs.ErrConfig, errdefs.WithSteps(errors.Join(errs...), errdefs.Do(errdefs.ListForwards)))
}

// remove removes a manual forward. text is the forward as it was added, or its host port.
func (d *portConfig) remove(text string) (owner string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, err := d.find(text)
	if err != nil {
		return "", err
	}
	owner = manualOwner(d.manual[i])
	return owner, d.change(slices.Delete(slices.Clone(d.manual), i, i+1))
}

func (d *portConfig) find(text string) (int, error) {
	var found []int
	if f, err := config.ParseForward(text); err == nil {
		text = f.String()
	}
	for i, s := range d.manual {
		if s == text {
			return i, nil
		}
		f, err := config.ParseForward(s)
		port := strconv.Itoa(f.HostPort)
		if err == nil && f.HostPort != 0 && (text == port || text == port+"/"+f.Proto) {
			found = append(found, i)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	fault := errdefs.Config("manual forward %s not found", text)
	if len(found) > 1 {
		fault = errdefs.Config("port %s matches %d manual forwards", text, len(found))
	}
	for _, forward := range d.manual {
		fault = fault.Do(errdefs.RemoveForward, forward)
	}
	if len(d.manual) == 0 {
		fault = fault.Do(errdefs.ListForwards)
	}
	return 0, fault
}

// change stores the list before it applies it, so that a confirmed change survives a crash.
func (d *portConfig) change(manual []string) error {
	if err := layout.WriteState(d.data.ManualPorts(), manualForwards{manual}); err != nil {
		return err
	}
	d.manual = manual
	return d.apply()
}
