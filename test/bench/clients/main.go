// Command clients loads a forwarded port with many TCP clients that send nothing. Meanwhile it measures the descriptors of the node's
// parent, and the response time of another port, by default the API server's. Use it only with a loopback address and with a node that
// is not in use. See docs/benchmarks.md.
//
//	clients -address 127.0.0.1:31520 [-n 10000] [-leave close|reset|stay] [-stay 30s] [-pid PARENT] [-api https://127.0.0.1:6443/readyz]
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

type options struct {
	address, leave, api string
	n, pid, workers     int
	stay, watch         time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.address, "address", "", "loopback address and port to load")
	flag.StringVar(&o.leave, "leave", "close", "how clients leave: close, reset, or stay until the end")
	flag.StringVar(&o.api, "api", "", "URL that must answer all the time")
	flag.IntVar(&o.n, "n", 10_000, "clients")
	flag.IntVar(&o.pid, "pid", 0, "process whose descriptors are counted")
	flag.IntVar(&o.workers, "workers", 50, "clients that connect at the same time")
	flag.DurationVar(&o.stay, "stay", 30*time.Second, "how long clients stay connected with -leave stay")
	flag.DurationVar(&o.watch, "watch", time.Minute, "how long to measure after the last client has left")
	flag.Parse()
	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func (o options) run() error {
	target, err := netip.ParseAddrPort(o.address)
	if err != nil {
		return fmt.Errorf("-address: %w", err)
	}
	if !target.Addr().IsLoopback() {
		return fmt.Errorf("-address: %s is not a loopback address", target.Addr())
	}
	before := o.descriptors()
	fmt.Printf("descriptors before: %d\n", before)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var measured sync.WaitGroup
	p := &probe{url: o.api}
	measured.Go(func() { p.run(ctx, o) })
	began := time.Now()
	conns, refused := o.connect()
	fmt.Printf("%d clients connected in %s, %d did not\n", o.n-refused, time.Since(began).Round(time.Millisecond), refused)
	if o.leave == "stay" {
		time.Sleep(o.stay)
		for _, c := range conns {
			_ = c.Close() // nothing was sent
		}
	}
	left := time.Now()
	for after := o.descriptors(); time.Since(left) < o.watch; after = o.descriptors() {
		if after <= before+1 { // 1 for the connection of the probe
			fmt.Printf("descriptors as before %s after the last client left\n", time.Since(left).Round(time.Second))
			break
		}
		time.Sleep(time.Second)
	}
	cancel()
	measured.Wait()
	fmt.Printf("descriptors after: %d, at most %d\n", o.descriptors(), p.most)
	if o.api != "" {
		fmt.Printf("%s: %d answers, longest %s, %d failures %v\n", o.api, p.answers, p.longest.Round(time.Millisecond), p.failures, p.last)
	}
	return nil
}

// connect starts the clients and returns the connections that stay open.
func (o options) connect() (conns []net.Conn, refused int) {
	var mu sync.Mutex
	var next, failed atomic.Int64
	var all sync.WaitGroup
	for range o.workers {
		all.Go(func() {
			for next.Add(1) <= int64(o.n) {
				c, err := net.DialTimeout("tcp", o.address, 2*time.Second)
				if err != nil {
					failed.Add(1)
					continue
				}
				if o.leave == "stay" {
					mu.Lock()
					conns = append(conns, c)
					mu.Unlock()
					continue
				}
				if o.leave == "reset" {
					_ = c.(*net.TCPConn).SetLinger(0) // fails only on a closed connection
				}
				_ = c.Close() // nothing was sent
			}
		})
	}
	all.Wait()
	return conns, int(failed.Load())
}

func (o options) descriptors() int {
	list, err := os.ReadDir("/proc/" + strconv.Itoa(o.pid) + "/fd")
	if err != nil {
		return 0
	}
	return len(list)
}

// probe requests a URL all the time, with a new connection for each request.
type probe struct {
	url               string
	answers, failures int
	longest           time.Duration
	last              error
	most              int
}

func (p *probe) run(ctx context.Context, o options) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // only a liveness check
	}}
	for ctx.Err() == nil {
		p.most = max(p.most, o.descriptors())
		if p.url != "" {
			began := time.Now()
			if err := get(client, p.url); err != nil {
				p.failures++
				p.last = err
			} else {
				p.answers++
				p.longest = max(p.longest, time.Since(began))
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func get(client *http.Client, url string) error {
	res, err := client.Get(url)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return errors.Join(err, res.Body.Close())
}
