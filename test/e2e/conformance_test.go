package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// envSuite names the directory with the output of `hack/conformance.sh build`: Kubernetes' end-to-end suite, its images, and the
// program that runs it.
const envSuite = "ROOTLESSNODE_E2E_SUITE"

// suiteLimit is the time limit of the smoke set, which takes about four minutes on two idle cores.
const suiteLimit = 20 * time.Minute

var suiteBuilt = testutil.Requirement{Name: "conformance-suite", Check: func() error {
	dir := os.Getenv(envSuite)
	if dir == "" {
		return fmt.Errorf("%s is not set; run make test-e2e", envSuite)
	}
	_, err := os.Stat(filepath.Join(dir, "images.tar"))
	return err
}}

// TestConformanceSmoke runs a few specs of Kubernetes' end-to-end suite for each subsystem. It does not run in parallel with other
// tests, because the suite uses ports that their nodes use too.
func TestConformanceSmoke(t *testing.T) {
	testutil.Require(t, suiteBuilt)
	n := newNode(t, "e2e-conformance")
	n.up()
	dir := os.Getenv(envSuite)
	ctx, cancel := context.WithTimeout(context.Background(), suiteLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "conformance"), "run", "-set", "smoke", "-dir", dir, "-out", t.TempDir(),
		"-name", n.name, "-rootlessnode", binary("rootlessnode"),
		"-kubectl", filepath.Join(os.Getenv(envOut), "libexec", "rootlessnode", "kubectl"),
		"-expectations", filepath.Join(dir, "expectations.yaml"))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 2 * time.Minute
	// It takes minutes and prints its progress.
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	assert.NilError(t, cmd.Run(), "the smoke set of the conformance suite")
}
