package parent

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// The throughput is measured in rounds: one stream through the forward, then one over plain loopback, so that other load on the machine
// affects both.
const (
	streamRounds = 7
	streamFor    = 300 * time.Millisecond
)

// BenchmarkPorts compares one TCP stream from the host through each pair of drivers with one over plain loopback:
//
//	go test ./pkg/parent -run '^$' -bench Ports -benchtime 1x
//
// It does not check the results. docs/network-drivers.md has a table of them.
func BenchmarkPorts(b *testing.B) {
	for _, p := range pairs() {
		b.Run(p.network+"/"+p.ports, func(b *testing.B) {
			testutil.Require(b, testutil.UserNS, testutil.Program("ip"), testutil.Program("nsenter"))
			for _, program := range p.programs {
				testutil.Require(b, testutil.Program(program))
			}
			if p.rootless {
				testutil.Require(b, testutil.OrdinaryUser)
			}
			var all [2][]float64
			for range b.N {
				cmd := exec.CommandContext(b.Context(), "/proc/self/exe", "-test.run=^TestThroughputOfPair$", "-test.v")
				cmd.Env = append(os.Environ(), envPair+"="+p.network+" "+p.ports)
				out, err := cmd.CombinedOutput()
				assert.NilError(b, err, "%s", out)
				for line := range strings.Lines(string(out)) {
					if _, figures, ok := strings.Cut(line, "throughput "); ok {
						var through, plain float64
						_, err := fmt.Sscan(figures, &through, &plain)
						assert.NilError(b, err)
						all[0], all[1] = append(all[0], through), append(all[1], plain)
					}
				}
			}
			assert.Assert(b, len(all[0]) > 0)
			ratios := make([]float64, len(all[0]))
			for i := range ratios {
				ratios[i] = all[0][i] / all[1][i]
			}
			b.ReportMetric(middle(all[0]), "MB/s")
			b.ReportMetric(middle(all[1]), "loopback-MB/s")
			b.ReportMetric(middle(ratios), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func middle(samples []float64) float64 {
	return slices.Sorted(slices.Values(samples))[len(samples)/2]
}

// TestThroughputOfPair runs in the process of one pair of BenchmarkPorts.
func TestThroughputOfPair(t *testing.T) {
	for _, p := range pairs() {
		if os.Getenv(envPair) != p.network+" "+p.ports {
			continue
		}
		rig := bring(t, p)
		at := freePorts(t, loopback)
		st, err := rig.driver.AddPort(t.Context(), port.Spec{
			Proto: "tcp4", ParentIP: loopback, ParentPort: at, ChildIP: rig.ip, ChildPort: sinkPort,
		})
		assert.NilError(t, err)
		defer rig.close(t, st)
		plain, err := net.Listen("tcp4", loopback+":0")
		assert.NilError(t, err)
		defer plain.Close()
		go swallow(plain)
		forwarded := net.JoinHostPort(loopback, strconv.Itoa(at))
		for range streamRounds {
			fmt.Printf("throughput %.1f %.1f\n", stream(t, forwarded), stream(t, plain.Addr().String()))
		}
		return
	}
	t.Skip("run by BenchmarkPorts")
}

// stream sends data for a while and returns the throughput in megabytes (10^6 bytes) per second, until the receiver has all data.
func stream(t *testing.T, address string) float64 {
	t.Helper()
	c, err := net.Dial("tcp4", address)
	assert.NilError(t, err)
	defer c.Close()
	assert.NilError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	buf := make([]byte, 128<<10)
	began := time.Now()
	for time.Since(began) < streamFor {
		_, err := c.Write(buf)
		assert.NilError(t, err)
	}
	assert.NilError(t, c.(*net.TCPConn).CloseWrite())
	line, err := bufio.NewReader(c).ReadString('\n')
	assert.NilError(t, err)
	took := time.Since(began).Seconds()
	n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	assert.NilError(t, err)
	return float64(n) / 1e6 / took
}
