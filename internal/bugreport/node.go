package bugreport

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// errNoHandle is the error of parts that need a handle of the node.
var errNoHandle = errors.New("the node's state is not readable; see versions.json")

func versions(_ context.Context, in *Input) ([]file, error) {
	v := struct {
		Rootlessnode  string            `json:"rootlessnode"`
		Go            string            `json:"go"`
		Platform      string            `json:"platform"`
		ComponentsDir string            `json:"componentsDir,omitempty"`
		Components    map[string]string `json:"components,omitempty"`
		Fault         string            `json:"fault,omitempty"`
	}{in.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, in.cfg().ComponentsDir, map[string]string{}, ""}
	if in.Fault != nil {
		v.Fault = in.Fault.Error()
	}
	m, err := preflight.ManifestOf(in.cfg())
	if err == nil {
		for _, c := range append(m.Components, m.Images...) {
			v.Components[c.Name] = c.Version
		}
	}
	return []file{{"versions.json", jsonText(v)}}, err
}

func effectiveConfig(_ context.Context, in *Input) ([]file, error) {
	if in.Node == nil {
		return nil, errNoHandle
	}
	b, err := config.Marshal(in.Node.Config())
	return []file{{"config.yaml", string(b)}}, err
}

func check(ctx context.Context, in *Input) ([]file, error) {
	if in.Node == nil {
		return nil, errNoHandle
	}
	findings, err := in.Node.Check(ctx)
	return []file{{"check.json", jsonText(findings)}}, err
}

func nodeStatus(ctx context.Context, in *Input) ([]file, error) {
	if in.Node == nil {
		return nil, errNoHandle
	}
	s, err := in.Node.Status(ctx)
	if err != nil {
		return nil, err
	}
	return []file{{"status.json", jsonText(s)}}, nil
}

func events(ctx context.Context, in *Input) ([]file, error) {
	if in.Node == nil {
		return nil, errNoHandle
	}
	var b strings.Builder
	err := in.Node.Events(ctx, false, func(e status.Event) error {
		line, err := json.Marshal(e)
		b.Write(append(line, '\n'))
		return err
	})
	if errors.Is(err, errdefs.ErrNotRunning) {
		return nil, nil // the events of the last run are lost; its error is in state/last-exit.json
	}
	return []file{{"events.jsonl", b.String()}}, err
}
