package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// logReader copies a log to out, across its rotations.
type logReader struct {
	f    *os.File
	path string
	out  io.Writer
}

func (l *logReader) close() { _ = l.f.Close() } // it was only read

// copy writes everything from the current offset to the end of the file.
func (l *logReader) copy() error {
	_, err := io.Copy(l.out, l.f)
	return err
}

// chunk is the read size when lines are counted from the end, in bytes.
const chunk = 64 << 10

// skipToTail seeks to the beginning of the last n lines. With n < 0 it stays at the beginning of the file.
func (l *logReader) skipToTail(n int) error {
	if n < 0 {
		return nil
	}
	end, err := l.f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	at, err := tailOffset(l.f, end, n)
	if err != nil {
		return err
	}
	_, err = l.f.Seek(at, io.SeekStart)
	return err
}

// tailOffset returns the offset of the last n lines in the first size bytes of r. The last line may lack its newline.
func tailOffset(r io.ReaderAt, size int64, n int) (int64, error) {
	if n == 0 {
		return size, nil
	}
	buf := make([]byte, chunk)
	for end := size; end > 0; {
		start := max(end-chunk, 0)
		b := buf[:end-start]
		if _, err := r.ReadAt(b, start); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if end == size {
			b = bytes.TrimSuffix(b, []byte("\n"))
		}
		for {
			i := bytes.LastIndexByte(b, '\n')
			if i < 0 {
				break
			}
			if n--; n == 0 {
				return start + int64(i) + 1, nil
			}
			b = b[:i]
		}
		end = start
	}
	return 0, nil
}

// follow copies the log until ctx ends. It watches the directory, not the file, because a rotated log is another file.
func (l *logReader) follow(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch log: %w", err)
	}
	defer func() { _ = w.Close() }() // nothing was written
	if err := w.Add(filepath.Dir(l.path)); err != nil {
		return fmt.Errorf("watch log: %w", err)
	}
	// Read after the watch has begun, so that no write in between is missed.
	for {
		if err := l.catchUp(); err != nil {
			return err
		}
		if !l.awaitEvent(ctx, w) {
			return nil
		}
	}
}

// awaitEvent waits for an event of the log file. It returns false when ctx or the watcher has ended.
func (l *logReader) awaitEvent(ctx context.Context, w *fsnotify.Watcher) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case e, ok := <-w.Events:
			if !ok {
				return false
			}
			if e.Name == l.path {
				return true
			}
		case _, ok := <-w.Errors:
			// Events were lost: read the file.
			return ok
		}
	}
}

// catchUp copies to the end of the file, and continues with its successor if there is one.
func (l *logReader) catchUp() error {
	for {
		if err := l.restartIfTruncated(); err != nil {
			return err
		}
		if err := l.copy(); err != nil {
			return err
		}
		next, err := l.successor()
		if err != nil || next == nil {
			return err
		}
		// The writer switches before the successor appears, so the old file is complete now.
		if err := errors.Join(l.copy(), l.f.Close()); err != nil {
			return errors.Join(err, next.Close())
		}
		l.f = next
	}
}

func (l *logReader) restartIfTruncated() error {
	st, err := l.f.Stat()
	if err != nil {
		return err
	}
	at, err := l.f.Seek(0, io.SeekCurrent)
	if err == nil && at > st.Size() {
		_, err = l.f.Seek(0, io.SeekStart)
	}
	return err
}

// successor opens the file with the log's name if it differs from the one being read; nil if there is no other file.
func (l *logReader) successor() (*os.File, error) {
	now, err := os.Stat(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // in the middle of a rotation
	}
	if err != nil {
		return nil, err
	}
	old, err := l.f.Stat()
	if err != nil || os.SameFile(old, now) {
		return nil, err
	}
	return os.Open(l.path)
}
