package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
)

// Maintenance sends requests to the member's maintenance API. It uses the JSON form of the API (grpc-gateway), because
// etcd's client module would add its generated types and gRPC to the node role for four requests. Each call opens its
// own connection, so that it uses the certificate that is on disk now.
type Maintenance struct {
	url, metrics string
	probe        component.Probe
}

// NewMaintenance returns a client of the node's own member. It does not connect.
func NewMaintenance(e component.Env) *Maintenance {
	return &Maintenance{
		url: ClientURL(e), metrics: "http://" + component.LoopbackAddress(e.Config.Inside.EtcdMetricsPort) + "/metrics",
		probe: component.Probe{CAFile: pki.CertFile(pki.EtcdCA), CertFile: pki.CertFile(ClientCert), KeyFile: pki.KeyFile(ClientCert)},
	}
}

// Space is the size of the member's database, in bytes.
type Space struct {
	// Size is the size of the database. InUse is the part of it that has data. Both contain revisions that are not
	// compacted yet.
	Size, InUse int64
	// Quota is the size from which etcd refuses writes.
	Quota int64
	// Revision is the current revision.
	Revision int64
	// Full is set while etcd refuses writes because the database has reached the quota. It remains set until Disarm.
	// Corrupt is set if the member has found that its data is damaged.
	Full, Corrupt bool
}

// memberStatus is a response of the status request. Integers are strings in the JSON form of protobuf.
type memberStatus struct {
	Header struct {
		Member   string `json:"member_id"`
		Revision int64  `json:",string"`
	}
	DBSize      int64    `json:"dbSize,string"`
	DBSizeInUse int64    `json:"dbSizeInUse,string"`
	DBSizeQuota int64    `json:"dbSizeQuota,string"`
	Errors      []string // with the active alarms
}

func (m *Maintenance) status(ctx context.Context) (memberStatus, error) {
	var s memberStatus
	err := m.call(ctx, "/v3/maintenance/status", struct{}{}, &s)
	return s, err
}

// Space returns the size of the database and the active alarms. It does not write to the disk.
func (m *Maintenance) Space(ctx context.Context) (Space, error) {
	s, err := m.status(ctx)
	if err != nil {
		return Space{}, err
	}
	alarm := func(name string) bool {
		return slices.ContainsFunc(s.Errors, func(e string) bool { return strings.Contains(e, "alarm:"+name) })
	}
	return Space{
		Size: s.DBSize, InUse: s.DBSizeInUse, Quota: s.DBSizeQuota, Revision: s.Header.Revision,
		Full: alarm(alarmFull), Corrupt: alarm("CORRUPT"),
	}, nil
}

const alarmFull = "NOSPACE"

// Compact removes the history of all keys before revision, and returns when the space can be used again. Compacting a
// revision that was compacted before succeeds.
func (m *Maintenance) Compact(ctx context.Context, revision int64) error {
	err := m.call(ctx, "/v3/kv/compaction", map[string]any{"revision": fmt.Sprint(revision), "physical": true}, nil)
	if err != nil && strings.Contains(err.Error(), "has been compacted") {
		return nil
	}
	return err
}

// Defragment rewrites the database without unused space. Meanwhile etcd does not respond to other requests.
func (m *Maintenance) Defragment(ctx context.Context) error {
	return m.call(ctx, "/v3/maintenance/defragment", struct{}{}, nil)
}

// Disarm allows writes again after the database was full. etcd ignores a request that does not name the member.
func (m *Maintenance) Disarm(ctx context.Context) error {
	s, err := m.status(ctx)
	if err != nil {
		return err
	}
	return m.call(ctx, "/v3/maintenance/alarm",
		map[string]string{"action": "DEACTIVATE", "memberID": s.Header.Member, "alarm": alarmFull}, nil)
}

// answerLimit is the size limit of a response, in bytes. The metrics are the largest one.
const answerLimit = 4 << 20

func (m *Maintenance) call(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("etcd %s: %w", path, err)
	}
	data, err := m.request(ctx, http.MethodPost, m.url+path, body)
	if err == nil && out != nil {
		err = json.Unmarshal(data, out)
	}
	if err != nil {
		return fmt.Errorf("etcd %s: %w", path, err)
	}
	return nil
}

func (m *Maintenance) request(ctx context.Context, method, url string, body []byte) ([]byte, error) {
	transport, err := m.probe.Transport()
	if err != nil {
		return nil, err
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := transport.RoundTrip(req) // no proxy of the environment is used
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	err = errors.Join(err, resp.Body.Close())
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", resp.Status, refusal(data))
	}
	return data, err
}

// refusal returns the message of the gateway's error response.
func refusal(body []byte) string {
	var r struct{ Message string }
	if json.Unmarshal(body, &r) == nil && r.Message != "" {
		return r.Message
	}
	text, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	return text
}
