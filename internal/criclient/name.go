package criclient

import (
	"fmt"

	"github.com/distribution/reference"
)

// CompleteName returns the complete name of an image, as docker and the kubelet complete it: "app" becomes
// "docker.io/library/app:latest". If the name has a digest, its tag is dropped.
func CompleteName(name string) (string, error) {
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return "", fmt.Errorf("invalid image name %q: %w", name, err)
	}
	return named.String(), nil
}
