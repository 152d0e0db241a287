package parent

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"gotest.tools/v3/assert"
)

// open forwards a free port of the host's loopback, TCP or UDP, to the listener inside.
func (b *bench) open(t *testing.T, proto, ip string, p int) *port.Status {
	t.Helper()
	st, err := b.driver.AddPort(t.Context(), port.Spec{
		Proto: proto, ParentIP: ip, ParentPort: p, ChildIP: b.ip, ChildPort: insidePort,
	})
	assert.NilError(t, err)
	return st
}

func (b *bench) close(t *testing.T, st *port.Status) {
	t.Helper()
	assert.NilError(t, b.driver.RemovePort(context.Background(), st.ID))
}

const loopback = "127.0.0.1"

func freePorts(t *testing.T, ip string) int {
	t.Helper()
	l, err := net.Listen("tcp4", net.JoinHostPort(ip, "0"))
	assert.NilError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// ask sends text to a port of the host and returns the answer of the listener inside: the client's address and the text.
func ask(proto, ip string, p int, text string) (client, answer string, err error) {
	c, err := net.Dial(proto+"4", net.JoinHostPort(ip, strconv.Itoa(p)))
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	return converse(c, text)
}

func converse(c net.Conn, text string) (client, answer string, err error) {
	limit := 10 * time.Second
	if c.LocalAddr().Network() == "udp" { // repeat lost datagrams
		limit = time.Second
	}
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", "", err
	}
	if _, err := io.WriteString(c, text+"\n"); err != nil {
		return "", "", err
	}
	line, err := bufio.NewReaderSize(c, 1<<16).ReadString('\n')
	if err != nil {
		return "", "", err
	}
	client, answer, _ = strings.Cut(strings.TrimSpace(line), " ")
	return client, answer, nil
}

// answers calls ask until it succeeds, because a datagram may be lost and some drivers open a port later than they report.
func answers(t *testing.T, proto, ip string, p int, text string) (client string) {
	t.Helper()
	var last error
	for range 10 {
		client, answer, err := ask(proto, ip, p, text)
		if err == nil {
			assert.Equal(t, answer, text)
			return client
		}
		last = err
	}
	t.Fatalf("%s %s:%d: %v", proto, ip, p, last)
	return ""
}

// datagram sends a datagram of n bytes. The listener answers with their number.
func (b *bench) datagram(t *testing.T, at string, p, n int) error {
	t.Helper()
	c, err := net.Dial("udp4", net.JoinHostPort(at, strconv.Itoa(p)))
	assert.NilError(t, err)
	defer c.Close()
	assert.NilError(t, c.SetDeadline(time.Now().Add(time.Second)))
	if _, err := c.Write([]byte(strings.Repeat("x", n))); err != nil {
		return err
	}
	buf := make([]byte, 256)
	got, err := c.Read(buf)
	if err != nil {
		return err
	}
	_, answer, _ := strings.Cut(strings.TrimSpace(string(buf[:got])), " ")
	if n > shortest && answer != strconv.Itoa(n) || n <= shortest && answer != strings.Repeat("x", n) {
		return errors.New("answered " + answer)
	}
	return nil
}

// hostAddress returns an IPv4 address of the host that is not a loopback address, or "".
func hostAddress(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	assert.NilError(t, err)
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			return ip.IP.String()
		}
	}
	return ""
}
