package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// echo sends a payload and checks that the same payload comes back.
func echo(target string) error {
	u, err := url.Parse(target)
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(strings.TrimPrefix(u.Path, "/"))
	if err != nil {
		return fmt.Errorf("%s: the path must be a number of bytes: %w", target, err)
	}
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = byte(i % 251) // so that a shifted part is noticed
	}
	send := map[string]func(string, []byte) ([]byte, error){"udp": sendUDP, "tcp": sendTCP}[u.Scheme]
	if send == nil {
		return fmt.Errorf("%s: want udp:// or tcp://", target)
	}
	got, err := send(u.Host, payload)
	if err == nil && !bytes.Equal(got, payload) {
		err = fmt.Errorf("%s: received %d different bytes", target, len(got))
	}
	return err
}

func sendTCP(host string, payload []byte) ([]byte, error) {
	resp, err := (&http.Client{Timeout: limit}).Post("http://"+host+"/", "application/octet-stream", bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// sendUDP sends one datagram, and repeats it every second until there is an answer, because datagrams may be lost.
func sendUDP(host string, payload []byte) ([]byte, error) {
	c, err := net.Dial("udp", host)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	buf := make([]byte, 64<<10)
	var failed error
	for range int(limit / time.Second) {
		if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return nil, err
		}
		if _, err := c.Write(payload); err != nil {
			return nil, err
		}
		n, err := c.Read(buf)
		if err == nil {
			return buf[:n], nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}
