package criclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Commands of the helper program for the image store of containerd. CRI has no calls for these. Their arguments are the socket of
// containerd and a request as JSON, and they print a StoreResult as JSON.
const (
	// ImportImages reads an ImportRequest. The archive is on standard input.
	ImportImages = "import-images"
	// TagImage reads a TagRequest.
	TagImage = "tag-image"
	// PullImage reads a PullRequest. The logins are on standard input, as a JSON list of Login: arguments are visible to other accounts.
	PullImage = "pull-image"
	// RemoveImages reads a RemoveRequest.
	RemoveImages = "remove-images"
)

// Environment variables of the helper program and of ctr.
const (
	EnvNamespace   = "CONTAINERD_NAMESPACE"
	EnvSnapshotter = "CONTAINERD_SNAPSHOTTER"
)

// ImportRequest is the argument of ImportImages.
type ImportRequest struct {
	// Names replace the names in the archive, which must then have exactly one image. They are complete.
	Names []string `json:"names,omitempty"`
}

// TagRequest is the argument of TagImage: the image with the given ID gets these names, which are complete.
type TagRequest struct {
	ID    string   `json:"id"`
	Names []string `json:"names"`
}

// PullRequest is the argument of PullImage. The name is complete.
type PullRequest struct {
	Name string `json:"name"`
}

// Login is a user name and a password for a registry.
type Login struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// RemoveRequest is the argument of RemoveImages. The names are complete.
type RemoveRequest struct {
	Names []string `json:"names"`
	// Force also removes images of running containers.
	Force bool `json:"force,omitempty"`
}

// StoreResult is the output of the commands for the image store.
type StoreResult struct {
	// Images are the images that were imported, named or removed. Each has one name.
	Images []Image `json:"images,omitempty"`
	// Faults are the reasons why other images were not.
	Faults []Fault `json:"faults,omitempty"`
}

// Fault is the reason why an image was not imported or not removed.
type Fault struct {
	// Kind selects the fix.
	Kind FaultKind `json:"kind"`
	// Message describes the fault, without the name of the archive.
	Message string `json:"message"`
}

// FaultKind is the kind of a Fault.
type FaultKind string

// Kinds of faults.
const (
	// FaultFormat: the input is not an image archive.
	FaultFormat FaultKind = "format"
	// FaultIncomplete: a part of the archive is missing.
	FaultIncomplete FaultKind = "incomplete"
	// FaultName: an image has no name, or an invalid one.
	FaultName FaultKind = "name"
	// FaultSeveral: the request has names, but the archive has several images.
	FaultSeveral FaultKind = "several"
	// FaultPlatform: an image is for another platform.
	FaultPlatform FaultKind = "platform"
	// FaultPull: the image cannot be pulled.
	FaultPull FaultKind = "pull"
	// FaultNotFound: there is no image with this name.
	FaultNotFound FaultKind = "not-found"
	// FaultInUse: containers use the image.
	FaultInUse FaultKind = "in-use"
	// FaultOther: containerd returned an error.
	FaultOther FaultKind = "other"
)

// StoreCommand returns the command line of the helper program for a command of the image store.
func StoreCommand(command, socket string, request any) ([]string, error) {
	text, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return []string{Program, command, socket, string(text)}, nil
}

// Import imports an archive into the image store of containerd at a socket. path is the helper program.
func Import(ctx context.Context, path string, env []string, socket string, archive *os.File, names ...string) (*StoreResult, error) {
	argv, err := StoreCommand(ImportImages, socket, ImportRequest{Names: names})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, argv[1:]...)
	var stderr strings.Builder
	cmd.Env, cmd.Stdin, cmd.Stderr, cmd.WaitDelay = env, archive, &stderr, killDelay
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, failure(err, stderr.String())
	}
	return ReadStoreResult(out)
}

// ReadStoreResult decodes the output of a command for the image store.
func ReadStoreResult(output []byte) (*StoreResult, error) {
	var r StoreResult
	if err := json.Unmarshal(output, &r); err != nil {
		return nil, fmt.Errorf("read the output of %s: %w", Program, err)
	}
	return &r, nil
}

// Err returns the faults as one error, or nil. Each line begins with the prefix.
func (r *StoreResult) Err(prefix string) error {
	var errs []error
	for _, f := range r.Faults {
		errs = append(errs, fmt.Errorf("%s: %s", prefix, f.Message))
	}
	return errors.Join(errs...)
}
