package imagestore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"

	streamingapi "github.com/containerd/containerd/api/services/streaming/v1"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
)

// maxPart is the maximum size of one message of a stream, in bytes, as in containerd's client.
const maxPart = 32 << 10

// inputReader counts the bytes of a reader, and records its error, because a stream cannot transfer it.
type inputReader struct {
	r   io.Reader
	n   int64
	err error
}

func (i *inputReader) Read(p []byte) (int, error) {
	n, err := i.r.Read(p)
	i.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		i.err = err
	}
	return n, err
}

// send sends r to containerd on a stream with the returned ID. wait ends the stream and returns when r is not read any more. A read
// that blocks, such as from a terminal, blocks it too.
func (s *Store) send(ctx context.Context, r io.Reader) (id string, wait func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	stream, err := s.streaming.Stream(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("open a stream to containerd: %s", reason(err))
	}
	id = "import-" + rand.Text()
	start, err := typeurl.MarshalAnyToProto(&streamingapi.StreamInit{ID: id})
	if err != nil {
		return "", nil, fmt.Errorf("open a stream to containerd: %w", err)
	}
	if err := stream.Send(start); err != nil {
		return "", nil, fmt.Errorf("open a stream to containerd: %s", reason(err))
	}
	if _, err := stream.Recv(); err != nil { // containerd confirms the ID
		return "", nil, fmt.Errorf("open a stream to containerd: %s", reason(err))
	}
	var both sync.WaitGroup
	window := make(chan int32)
	both.Go(func() { receiveWindow(ctx, stream, window) })
	both.Go(func() {
		sendParts(ctx, stream, window, r)
		_ = stream.CloseSend() // an error means that containerd has ended the stream
	})
	return id, func() { cancel(); both.Wait() }, nil
}

// receiveWindow passes on how many more bytes containerd accepts, until the stream ends.
func receiveWindow(ctx context.Context, stream streamingapi.Streaming_StreamClient, window chan<- int32) {
	defer close(window)
	for {
		message, err := stream.Recv()
		if err != nil {
			return
		}
		var update transfertypes.WindowUpdate
		if err := typeurl.UnmarshalTo(message, &update); err != nil {
			return
		}
		select {
		case window <- update.GetUpdate():
		case <-ctx.Done():
			return
		}
	}
}

// sendParts sends r until its end, and never more than containerd accepts.
func sendParts(ctx context.Context, stream streamingapi.Streaming_StreamClient, window <-chan int32, r io.Reader) {
	buffer := make([]byte, maxPart)
	var accepted int32
	for ctx.Err() == nil {
		for accepted <= 0 {
			more, open := <-window
			if !open {
				return
			}
			accepted += more
		}
		n, readErr := r.Read(buffer[:min(accepted, maxPart)])
		if n > 0 {
			message, err := dataMessage(buffer[:n])
			if err != nil || stream.Send(message) != nil {
				return
			}
			accepted -= int32(n) //nolint:gosec // at most maxPart
		}
		if readErr != nil {
			return
		}
	}
}

func dataMessage(data []byte) (*anypb.Any, error) {
	return typeurl.MarshalAnyToProto(&transfertypes.Data{Data: data})
}
