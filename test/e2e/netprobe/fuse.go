package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
)

// Operations of the FUSE protocol, from linux/fuse.h.
const (
	opLookup, opForget, opGetattr, opOpen, opRead, opInit = 1, 2, 3, 14, 15, 26
	opRelease, opFlush, opInterrupt, opBatchForget        = 18, 25, 36, 42
)

const (
	fuseHeader = 40
	rootID     = 1
	helloID    = 2
	hello      = "hello from FUSE\n"
)

// fuse mounts a file system with one file, hello, on dir and serves it until it is unmounted.
func fuse(dir string) error {
	fd, err := syscall.Open("/dev/fuse", syscall.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open /dev/fuse: %w", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := syscall.Mount("probe", dir, "fuse.probe", syscall.MS_NOSUID|syscall.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	buf := make([]byte, 1<<18)
	for {
		n, err := syscall.Read(fd, buf)
		switch {
		case errors.Is(err, syscall.ENODEV): // unmounted
			return nil
		case errors.Is(err, syscall.EINTR), errors.Is(err, syscall.ENOENT):
			continue
		case err != nil:
			return fmt.Errorf("read a request: %w", err)
		}
		if answer := serveFuse(buf[:n]); answer != nil {
			if _, err := syscall.Write(fd, answer); err != nil && !errors.Is(err, syscall.ENOENT) {
				return fmt.Errorf("answer: %w", err)
			}
		}
	}
}

// serveFuse returns the answer to one request, or nil if the request has none.
func serveFuse(req []byte) []byte {
	le := binary.LittleEndian // the tests run only on little-endian machines
	op, unique, node, body := le.Uint32(req[4:]), le.Uint64(req[8:]), le.Uint64(req[16:]), req[fuseHeader:]
	errno := syscall.Errno(0)
	var out []byte
	switch op {
	case opForget, opBatchForget, opInterrupt:
		return nil
	case opInit:
		out = make([]byte, 64)
		le.PutUint32(out, 7)
		le.PutUint32(out[4:], 31)
		le.PutUint32(out[20:], 1<<16)
	case opGetattr:
		out = append(make([]byte, 16), attributes(node)...)
	case opLookup:
		if string(body) != "hello\x00" {
			errno = syscall.ENOENT
			break
		}
		out = append(make([]byte, 40), attributes(helloID)...)
		le.PutUint64(out, helloID)
	case opOpen:
		out = make([]byte, 16)
	case opRead:
		offset := min(le.Uint64(body[8:]), uint64(len(hello)))
		out = []byte(hello)[offset:]
	case opRelease, opFlush:
	default:
		errno = syscall.ENOSYS
	}
	answer := make([]byte, 16, 16+len(out))
	le.PutUint32(answer, uint32(16+len(out)))
	le.PutUint32(answer[4:], uint32(-int32(errno)))
	le.PutUint64(answer[8:], unique)
	return append(answer, out...)
}

func attributes(node uint64) []byte {
	le := binary.LittleEndian
	a := make([]byte, 88)
	mode, size := uint32(syscall.S_IFDIR|0o555), 0
	if node == helloID {
		mode, size = syscall.S_IFREG|0o444, len(hello)
	}
	le.PutUint64(a, node)
	le.PutUint64(a[8:], uint64(size))
	le.PutUint32(a[60:], mode)
	le.PutUint32(a[64:], 1)
	return a
}
