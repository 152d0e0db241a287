package registryauth

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Plugin implements the kubelet's credential provider API: it passes the request from in to the server at socket, and writes the
// response to out.
//
// Runs in: child, as a process that the kubelet starts for each image.
func Plugin(socket string, in io.Reader, out io.Writer) error {
	request, err := io.ReadAll(io.LimitReader(in, maxMessage))
	if err != nil {
		return fmt.Errorf("read the kubelet's request: %w", err)
	}
	c, err := net.Dial("unix", socket)
	if err != nil {
		return fmt.Errorf("ask the host for the login: %w", err)
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return err
	}
	var r reply
	if _, err := c.Write(request); err != nil {
		return fmt.Errorf("ask the host for the login: %w", err)
	}
	if err := json.NewDecoder(io.LimitReader(c, maxMessage)).Decode(&r); err != nil {
		return fmt.Errorf("read the login from the host: %w", err)
	}
	if r.Error != "" {
		return errors.New(r.Error)
	}
	return json.NewEncoder(out).Encode(r.Response)
}
