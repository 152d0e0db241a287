package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// request is one request of a client. Times are in seconds, At since the beginning of the load.
type request struct {
	At      float64 `json:"at"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

const (
	// requestLimit is the time limit of one request.
	requestLimit = 15 * time.Second
	// clientPause is the pause of a client between two requests, and between two datagrams.
	clientPause = 2 * time.Millisecond
)

// load sends requests to a port of the host's loopback until stop is called, which returns all requests and the longest time
// without an answer of a UDP client.
func load(ctx context.Context, port, clients int) (stop func() ([]request, time.Duration)) {
	ctx, cancel := context.WithCancel(ctx)
	began, address := time.Now(), fmt.Sprintf("127.0.0.1:%d", port)
	var (
		all sync.WaitGroup
		mu  sync.Mutex
		got []request
		gap time.Duration
	)
	for range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				at := time.Now()
				err := get("http://" + address + "/")
				r := request{At: at.Sub(began).Seconds(), Seconds: time.Since(at).Seconds()}
				if err != nil {
					r.Error = err.Error()
				}
				mu.Lock()
				got = append(got, r)
				mu.Unlock()
				time.Sleep(clientPause)
			}
		})
	}
	all.Go(func() { gap = exchange(ctx, address) })
	return func() ([]request, time.Duration) {
		cancel()
		all.Wait()
		return got, gap
	}
}

// get sends one request with a new connection.
func get(url string) error {
	client := http.Client{Timeout: requestLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err = io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return err
}

// exchange sends datagrams from one socket until ctx ends. It returns the longest time between two answers.
func exchange(ctx context.Context, address string) (longest time.Duration) {
	c, err := net.Dial("udp", address)
	if err != nil {
		return requestLimit
	}
	defer c.Close()
	buf := make([]byte, 16)
	for last := time.Now(); ctx.Err() == nil; time.Sleep(clientPause) {
		_ = c.SetDeadline(time.Now().Add(10 * clientPause))
		_, _ = c.Write([]byte("x")) // losses show as a gap
		if _, err := c.Read(buf); err == nil {
			longest = max(longest, time.Since(last))
			last = time.Now()
		} else {
			longest = max(longest, time.Since(last))
		}
	}
	return longest
}
