package kubeconfig

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const (
	// lockWait is how long lock waits for another program. kubectl holds the lock for milliseconds.
	lockWait = 2 * time.Second
	lockPoll = 20 * time.Millisecond
)

// lock creates the lock file of a kubeconfig, as clientcmd does, and returns a function that removes it.
func lock(path string) (unlock func(), err error) {
	name := path + ".lock"
	for deadline := time.Now().Add(lockWait); ; time.Sleep(lockPoll) {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0)
		if err == nil {
			return func() { _ = os.Remove(name) }, f.Close()
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if time.Now().After(deadline) {
			return nil, errdefs.Errorf("another program has locked it (%s)", name).
				Hint("# if kubectl and similar programs are not running:", "rm -f "+hostinfo.Quote(name)).Do(errdefs.MergeKubeconfig)
		}
	}
}
