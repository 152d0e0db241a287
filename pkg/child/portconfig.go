package child

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
)

// portDesk keeps together what decides about ports besides the API server: the config, the host's addresses and the
// forwards made by hand. Its zero value is ready.
type portDesk struct {
	mu  sync.Mutex
	set func(portfwd.Config) // nil while no forwarder runs
	// trouble is told which ports take no connections at present; it may be nil.
	trouble func([]layout.PortFault)
	host    []portfwd.HostAddress
	manual  []string // canonical, as config.Forward writes them
	lost    []string // interfaces without an address that were warned of
}

// run starts a forwarder with the config of the moment and passes changes on until stop.
func (d *portDesk) run(n *nodeRole, start func(portfwd.Config) error, set func(portfwd.Config), trouble func([]layout.PortFault)) (stop func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch the host's addresses: %w", err)
	}
	// The file is replaced, so its directory is watched; what happened before is read now.
	if err := w.Add(filepath.Dir(n.rt.HostAddresses())); err != nil {
		return nil, errors.Join(fmt.Errorf("watch the host's addresses: %w", err), w.Close())
	}
	if err := errors.Join(d.readHost(n), d.readManual(n)); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	cfg, err := d.config(n)
	if err == nil {
		err = start(cfg)
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	d.set, d.trouble = set, trouble
	if err := d.readFaults(n); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	var followed sync.WaitGroup
	followed.Go(func() { d.follow(n, w) })
	return func() {
		_ = w.Close() // nothing was written
		followed.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.set, d.trouble = nil, nil
	}, nil
}

// follow passes the host's addresses and the faults of ports on as they change.
func (d *portDesk) follow(n *nodeRole, w *fsnotify.Watcher) {
	for {
		changed := ""
		select {
		case e, ok := <-w.Events:
			if !ok {
				return
			}
			changed = e.Name
		case _, ok := <-w.Errors: // events were lost: look
			if !ok {
				return
			}
		}
		d.mu.Lock()
		if changed == "" || changed == n.rt.HostAddresses() {
			err := d.readHost(n)
			if err == nil {
				err = d.apply(n)
			}
			if err != nil {
				n.log.WithError(err).Warn("the host's addresses are not followed")
			}
		}
		if changed == "" || changed == n.rt.PortFaults() {
			if err := d.readFaults(n); err != nil {
				n.log.WithError(err).Warn("the faults of ports are not followed")
			}
		}
		d.mu.Unlock()
	}
}

// readFaults reads which ports take no connections at present. Before the first of them there is no file.
func (d *portDesk) readFaults(n *nodeRole) error {
	var list []layout.PortFault
	if err := layout.ReadJSON(n.rt.PortFaults(), &list); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the faults of ports: %w", err)
	}
	if d.trouble != nil {
		d.trouble(list)
	}
	return nil
}

// apply gives the forwarder the config of the moment.
func (d *portDesk) apply(n *nodeRole) error {
	cfg, err := d.config(n)
	if err == nil && d.set != nil {
		d.set(cfg)
	}
	return err
}

func (d *portDesk) readHost(n *nodeRole) error {
	var list []layout.HostAddress
	if err := layout.ReadJSON(n.rt.HostAddresses(), &list); err != nil {
		return fmt.Errorf("read the host's addresses: %w", err)
	}
	d.host = d.host[:0:0]
	for _, a := range list {
		d.host = append(d.host, portfwd.HostAddress(a))
	}
	return nil
}

func (d *portDesk) readManual(n *nodeRole) error {
	d.manual = nil
	if err := layout.ReadJSON(n.data.ManualPorts(), &d.manual); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the forwards made by hand: %w", err)
	}
	return nil
}

// config says what is wanted besides Services and pods, and how.
func (d *portDesk) config(n *nodeRole) (portfwd.Config, error) {
	p := n.cfg.Ports
	c := portfwd.Config{
		NodePorts: p.NodePorts, LoadBalancers: p.LoadBalancers, PodHostPorts: p.PodHostPorts,
		ExternalIPs: len(p.ExternalIPs) > 0, ExternalIPRanges: p.ExternalIPs.Prefixes(), BindAnywhere: p.Annotations.Bind, MaxForwards: p.MaxForwards,
		HostNetworkPods: p.HostNetworkPods, PrivilegedPortOffset: p.PrivilegedPortOffset, HostAddresses: d.host,
		BindAddresses: []netip.Addr{}, ChildIPv6: n.ipv6,
	}
	if !slices.Contains(p.Annotations.Namespaces, config.AllNamespaces) {
		c.AnnotationNamespaces = append([]string{}, p.Annotations.Namespaces...)
	}
	node, multi := n.address.now()
	for _, entry := range p.BindAddresses {
		if entry == config.BindNodeIP && multi {
			entry = node.String()
		}
		addrs, err := portfwd.ResolveBind([]string{entry}, d.host)
		if err != nil && !slices.Contains(d.lost, entry) {
			d.lost = append(d.lost, entry)
			n.log.WithError(err).Warn("ports.bindAddresses: nothing listens there until it has one")
		}
		c.BindAddresses = append(c.BindAddresses, addrs...)
	}
	var err error
	if c.PickFirst, c.PickLast, err = config.ParsePickRange(p.PickRange); err != nil {
		return c, fmt.Errorf("ports.pickRange: %w", err)
	}
	if n.cfg.ControlPlane.Embedded {
		ip, err := netip.ParseAddr(n.cfg.API.BindAddress)
		if err != nil {
			return c, fmt.Errorf("api.bindAddress: %w", err)
		}
		c.Static = append(c.Static, portfwd.Static{
			Name: apiForward, Protocol: "tcp", HostIP: ip, HostPort: n.cfg.API.Port, ChildPort: n.cfg.Inside.APIServerPort,
		})
	}
	if multi {
		c.Static = append(c.Static, n.nodeForwards(node)...)
	}
	for _, s := range p.Static {
		f, err := config.ParseForward(s)
		if err != nil {
			return c, fmt.Errorf("ports.static: %w", err)
		}
		c.Static = append(c.Static, statics(f, false)...)
	}
	for _, s := range d.manual {
		f, err := config.ParseForward(s)
		if err != nil {
			return c, fmt.Errorf("forward made by hand: %w", err)
		}
		c.Static = append(c.Static, statics(f, true)...)
	}
	return c, nil
}

// statics are the single ports of a forward. Those made by hand are called as they were written; those of the config after
// their port, unless that is to be picked.
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

// forwardHint shows how a forward is written.
const forwardHint = `rootlessnode ports add 8080:30080            # port 8080 of the host to port 30080 of the node
rootlessnode ports add 0.0.0.0:5353:53/udp   # on all addresses, UDP
rootlessnode ports add 9000-9009:9000-9009   # a range
rootlessnode ports add 0:8080                # a port of the node's choice`

// add makes a forward by hand. One that is there already is no fault.
func (d *portDesk) add(n *nodeRole, text string) (owner string, err error) {
	f, err := config.ParseForward(text)
	if err != nil {
		return "", errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, err), forwardHint)
	}
	if n.cfg.Ports.Driver == "none" {
		return "", errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, errors.New("the node forwards no ports (ports.driver: none)")),
			"rootlessnode down\nrootlessnode up --set ports.driver=builtin")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.Contains(d.manual, f.String()) {
		return manualOwner(f.String()), nil
	}
	manual := append(slices.Clone(d.manual), f.String())
	if err := d.clash(n, manual); err != nil {
		return "", err
	}
	return manualOwner(f.String()), d.change(n, manual)
}

// clash tells whether the last of these forwards cannot be had beside the others and those of the config.
func (d *portDesk) clash(n *nodeRole, manual []string) error {
	before := d.manual
	d.manual = manual
	cfg, err := d.config(n)
	d.manual = before
	if err != nil {
		return err
	}
	var errs []error
	_, warnings := portfwd.Wanted(portfwd.Input{}, cfg)
	for _, w := range warnings {
		if w.Owner.Kind == portfwd.KindManual {
			errs = append(errs, errors.New(w.Message))
		}
	}
	return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, errors.Join(errs...)), "rootlessnode ports")
}

// remove takes back a forward made by hand, named as it was made or by its host port.
func (d *portDesk) remove(n *nodeRole, text string) (owner string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, err := d.find(text)
	if err != nil {
		return "", err
	}
	owner = manualOwner(d.manual[i])
	return owner, d.change(n, slices.Delete(slices.Clone(d.manual), i, i+1))
}

func (d *portDesk) find(text string) (int, error) {
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
	err, hint := fmt.Errorf("no forward %s was made by hand", text), "rootlessnode ports"
	if len(found) > 1 {
		err = fmt.Errorf("%s is the port of %d forwards made by hand", text, len(found))
	}
	if len(d.manual) > 0 {
		hint = "rootlessnode ports remove " + strings.Join(d.manual, "\nrootlessnode ports remove ")
	}
	return 0, errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, err), hint)
}

// change writes the list down first: what is answered survives a crash.
func (d *portDesk) change(n *nodeRole, manual []string) error {
	if err := layout.WriteJSON(n.data.ManualPorts(), manual); err != nil {
		return err
	}
	d.manual = manual
	return d.apply(n)
}
