package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// envScale names the file for the table of TestScale. Only hack/scale.sh sets it.
const envScale = "ROOTLESSNODE_E2E_SCALE"

// scaleWanted requires that the measurement is requested by envScale.
var scaleWanted = testutil.Requirement{Name: "scale", Check: func() error {
	if os.Getenv(envScale) == "" {
		return errors.New(envScale + " names no file for the table; run make bench-scale")
	}
	return nil
}}

const (
	scaleAccounts = 3
	// scaleRest is the pause after a change of the cluster, and scaleSpan the time over which rates are measured. Both are part of
	// the measurement.
	scaleRest = 10 * time.Second
	scaleSpan = time.Minute
	// paperNodes is the number of Node objects without a running node, which makes 100 with the running ones.
	paperNodes    = 90
	paperServices = 100
)

// scaleSizes are the cluster sizes that are measured.
var scaleSizes = []int{1, 3, 10}

// TestScale measures clusters of several sizes, then a cluster of 100 nodes of which most are only objects, then the same cluster with
// Services. It does not check the figures; docs/scaling.md discusses them.
func TestScale(t *testing.T) {
	testutil.Require(t, scaleWanted, testutil.Program("bridge"))
	last := scaleSizes[len(scaleSizes)-1]
	c := newJoinedOn(t, "scale", newHostsOf(t, last, scaleAccounts), "")
	var tab scaleTable
	c.control().up()
	v := c.invite("--reusable")
	running := 1
	for _, size := range scaleSizes {
		for ; running < size; running++ {
			out, code := c.hosts[running].paste(upLimit, c.own(running, v.line))
			assert.Equal(t, code, 0, "%s did not join:\n%s", objectName(running), out)
			c.waitNode(running)
		}
		tab.begin(fmt.Sprintf("%d nodes", size))
		c.measure(&tab, running)
	}

	c.control().create(paperNodeList())
	c.control().kubectl("wait", "--for=condition=Ready=Unknown", "nodes", "-l", paperLabel, "--timeout", (podLimit - 5*time.Second).String())
	tab.begin(fmt.Sprintf("%d and %d on paper", running, paperNodes))
	c.measure(&tab, running)

	c.control().create(paperServiceList("NodePort", "port"))
	eventually(t, podLimit, "the node ports are forwarded", func() error {
		for i := range running {
			if n := c.forwards(i); n < paperServices {
				return fmt.Errorf("%s forwards %d ports", objectName(i), n)
			}
		}
		return nil
	})
	tab.begin(fmt.Sprintf("with %d node ports", paperServices))
	c.measure(&tab, running)

	c.control().create(paperServiceList("ClusterIP", "inner"))
	tab.begin(fmt.Sprintf("and %d Services without", paperServices))
	c.measure(&tab, running)
}

// create creates objects that do not exist yet.
func (n *testNode) create(list string) {
	n.t.Helper()
	out, code := n.feed(podLimit, list, "kubectl", "create", "-f", "-")
	assert.Equal(n.t, code, 0, out)
}

const paperLabel = "rootlessnode.test/paper=yes"

// paperNodeList returns Node objects with flannel's annotations. Each has a pod network, and an address outside of the hosts' range.
func paperNodeList() string {
	var b strings.Builder
	for i := range paperNodes {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Node
metadata:
  name: paper-%03[1]d
  labels: {rootlessnode.test/paper: "yes"}
  annotations:
    flannel.alpha.coreos.com/backend-type: vxlan
    flannel.alpha.coreos.com/backend-data: '{"VNI":1,"VtepMAC":"02:00:00:00:00:%02[1]x"}'
    flannel.alpha.coreos.com/kube-subnet-manager: "true"
    flannel.alpha.coreos.com/public-ip: %[2]s%[3]d
spec: {podCIDR: 10.42.%[3]d.0/24, podCIDRs: [10.42.%[3]d.0/24]}
`, i, hostNet, 100+i)
	}
	return b.String()
}

// paperServiceList returns Services without a selector, and for each an EndpointSlice with three endpoints that do not exist.
func paperServiceList(typ, prefix string) string {
	var b strings.Builder
	for i := range paperServices {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata: {name: %[1]s-%03[2]d}
spec: {type: %[3]s, ports: [{name: web, port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-%03[2]d-1, labels: {kubernetes.io/service-name: %[1]s-%03[2]d}}
addressType: IPv4
ports: [{name: web, port: 8080}]
endpoints:
- {addresses: [10.42.200.%[4]d], conditions: {ready: true}, nodeName: paper-000}
- {addresses: [10.42.201.%[4]d], conditions: {ready: true}, nodeName: paper-001}
- {addresses: [10.42.202.%[4]d], conditions: {ready: true}, nodeName: paper-002}
`, prefix, i, typ, i+1)
	}
	return b.String()
}

// scaleTable has a column for each cluster and a row for each measured value.
type scaleTable struct {
	columns []string
	rows    []string
	cells   map[string]map[int]string
}

func (s *scaleTable) begin(column string) { s.columns = append(s.columns, column) }

// set sets a value in the last column.
func (s *scaleTable) set(row, format string, args ...any) {
	if s.cells == nil {
		s.cells = map[string]map[int]string{}
	}
	if !slices.Contains(s.rows, row) {
		s.rows = append(s.rows, row)
		s.cells[row] = map[int]string{}
	}
	s.cells[row][len(s.columns)-1] = fmt.Sprintf(format, args...)
}

func (s *scaleTable) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(s.columns, " | "), strings.Repeat("---:|", len(s.columns)))
	for _, row := range s.rows {
		fmt.Fprintf(&b, "| %s |", row)
		for i := range s.columns {
			fmt.Fprintf(&b, " %s |", s.cells[row][i])
		}
		b.WriteByte('\n')
	}
	return b.String()
}
