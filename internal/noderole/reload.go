package noderole

import (
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// reloader has what reload can change while the node is running.
type reloader struct {
	mu sync.Mutex // held during a reload
	// cfg is the current config. Fields that are not reloadable are always those of nodeRole.cfg.
	cfg *config.NodeConfig
	// rendered has the programs and files of the components, which they use from their next start on.
	rendered map[string]*atomic.Pointer[component.Rendered]
}

// add returns the place of a component's program and files. It must not be called after the start.
func (r *reloader) add(now component.Rendered) *atomic.Pointer[component.Rendered] {
	if r.rendered == nil {
		r.rendered = map[string]*atomic.Pointer[component.Rendered]{}
	}
	p := &atomic.Pointer[component.Rendered]{}
	p.Store(&now)
	r.rendered[now.Name] = p
	return p
}

// reload applies a complete config to the running node: it renders all components again, and restarts those whose files or flags differ.
// It returns their names. Pods continue to run. On an error, nothing is changed.
//
// Errors: of class errdefs.ErrConfig if a field has changed that needs a new start of the node.
func (n *nodeRole) reload(cfg *config.NodeConfig) (restarted []string, err error) {
	r := &n.reloader
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range config.Differences(r.cfg, cfg) {
		if !config.Reloadable(d.Field) {
			return nil, errdefs.Config("%s: a change needs a new start of the node", d.Field)
		}
	}
	level, err := logrus.ParseLevel(cfg.LogLevel)
	if err != nil {
		return nil, errdefs.Class(errdefs.ErrConfig, err)
	}
	changed, err := n.renderChanged(cfg)
	if err != nil {
		return nil, err
	}
	if err := n.ports.reload(cfg); err != nil {
		return nil, fmt.Errorf("reload the forwarded ports: %w", err)
	}
	n.log.SetLevel(level)
	r.cfg = cfg
	for i := range changed {
		name := changed[i].Name
		r.rendered[name].Store(&changed[i])
		if err := n.group.Restart(name); err != nil {
			return restarted, err
		}
		restarted = append(restarted, name)
	}
	n.log.WithField("restarted", restarted).Info("reloaded the config")
	return restarted, nil
}

// renderChanged returns the components whose files or flags differ with cfg, in the order of the catalogue.
func (n *nodeRole) renderChanged(cfg *config.NodeConfig) (changed []component.Rendered, err error) {
	env := n.env
	env.Config = cfg
	for _, c := range n.components {
		if c.Render == nil {
			continue
		}
		now, err := c.Render(env)
		if err != nil {
			return nil, err
		}
		if !reflect.DeepEqual(*n.reloader.rendered[now.Name].Load(), now) {
			changed = append(changed, now)
		}
	}
	return changed, nil
}
