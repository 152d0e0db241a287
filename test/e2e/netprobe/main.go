// Command netprobe is the network client of the test pods. It is needed because busybox, linked statically against glibc, crashes when
// it looks up a name.
//
//	netprobe get URL      prints the answer; fails unless its status is 200
//	netprobe lookup NAME  prints the addresses
//	netprobe dial ADDRESS connects to HOST:PORT by TCP
//	netprobe echo URL     sends BYTES bytes to the `netprobe serve` at udp://HOST:PORT/BYTES or tcp://HOST:PORT/BYTES,
//	                      and fails unless they come back
//	netprobe serve PORT   answers HTTP requests with "hello from HOSTNAME", and returns POST bodies and UDP datagrams
//	netprobe fuse DIR     mounts a file system with one file, hello, and serves it
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

const limit = 5 * time.Second

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: netprobe get URL | lookup NAME | dial ADDRESS | echo URL | serve PORT | fuse DIR")
		os.Exit(2)
	}
	run := map[string]func(string) error{"get": get, "lookup": lookup, "dial": dial, "echo": echo, "serve": serve, "fuse": fuse}[os.Args[1]]
	if run == nil {
		fmt.Fprintln(os.Stderr, "netprobe: unknown verb", os.Args[1])
		os.Exit(2)
	}
	if err := run(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "netprobe:", err)
		os.Exit(1)
	}
}

func get(url string) error {
	resp, err := (&http.Client{Timeout: limit}).Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

func lookup(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupHost(ctx, name)
	for _, a := range addrs {
		fmt.Println(a)
	}
	return err
}

func dial(address string) error {
	c, err := net.DialTimeout("tcp", address, limit)
	if err != nil {
		return err
	}
	return c.Close()
}

func serve(port string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	udp, err := net.ListenPacket("udp", ":"+port)
	if err != nil {
		return err
	}
	go reflect(udp) // until the process ends
	server := &http.Server{Addr: ":" + port, ReadHeaderTimeout: limit, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			body, _ := io.ReadAll(r.Body) // before the answer, because that may end the request
			_, _ = w.Write(body)          // the client reports an incomplete answer
			return
		}
		_, _ = fmt.Fprintf(w, "hello from %s", name) // the client reports an incomplete answer
	})}
	return server.ListenAndServe()
}

// reflect sends datagrams back until the socket is closed.
func reflect(c net.PacketConn) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(buf[:n], from) // a datagram may be lost
	}
}
