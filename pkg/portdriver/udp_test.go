package portdriver

import (
	"io"
	"net"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/poll"
)

// TestUDPConnectsAgain checks that the session of a client gets another source port when its destination has refused a datagram,
// so that kube-proxy chooses another pod for it.
func TestUDPConnectsAgain(t *testing.T) {
	d, _ := run(t)
	listen := func(address string) *net.UDPConn {
		c, err := net.ListenPacket("udp4", address)
		assert.NilError(t, err)
		return c.(*net.UDPConn)
	}
	server := listen(nodeSide + ":0")
	address := server.LocalAddr().(*net.UDPAddr)
	s := udpSpec(t, address.Port)
	add(t, d, s)
	client := dialFrom(t, memberIP, s)
	from := func(server *net.UDPConn) (source net.Addr) {
		buf := make([]byte, 8)
		poll.WaitOn(t, func(poll.LogT) poll.Result {
			_, err := io.WriteString(client, "x")
			assert.NilError(t, err)
			assert.NilError(t, server.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
			if _, source, err = server.ReadFrom(buf); err != nil {
				return poll.Continue("%v", err)
			}
			return poll.Success()
		}, poll.WithDelay(time.Millisecond), poll.WithTimeout(patience))
		return source
	}
	first := from(server)
	assert.Equal(t, from(server).String(), first.String(), "one session")
	assert.NilError(t, server.Close())
	poll.WaitOn(t, func(poll.LogT) poll.Result { // until the session has noticed it
		_, err := io.WriteString(client, "x")
		assert.NilError(t, err)
		other := listen(address.String())
		defer other.Close()
		if from(other).String() == first.String() {
			return poll.Continue("still from %s", first)
		}
		return poll.Success()
	}, poll.WithDelay(time.Millisecond), poll.WithTimeout(patience))
}
