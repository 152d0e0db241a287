// Command netprobe is the network client of the test pods: busybox, linked statically against glibc, crashes when it
// looks up a name.
//
//	netprobe get URL      prints the answer; fails unless its status is 200
//	netprobe lookup NAME  prints the addresses
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
		fmt.Fprintln(os.Stderr, "usage: netprobe get URL | lookup NAME")
		os.Exit(2)
	}
	run := map[string]func(string) error{"get": get, "lookup": lookup}[os.Args[1]]
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
