package main

import (
	"errors"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
)

// roleServe is the role of this program as the server in a pod: `rollout serve PORT`.
const roleServe = "serve"

// serve answers HTTP requests and datagrams, and exits at once on TERM.
func serve(port string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	p, err := net.ListenPacket("udp", ":"+port)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- answer(p) }()
	go func() {
		failed <- http.ListenAndServe(":"+port, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(name)) }))
	}()
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	select {
	case <-term:
		return nil
	case err := <-failed:
		return err
	}
}

// answer sends datagrams back.
func answer(p net.PacketConn) error {
	for buf := make([]byte, 16); ; {
		n, from, err := p.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err == nil {
			_, _ = p.WriteTo(buf[:n], from) // datagrams may be lost
		}
	}
}
