// The driver of Kubernetes' own end-to-end suite: it builds the suite and its images, runs a set and judges the outcome.
module github.com/rootlessnode/rootlessnode/test/conformance

go 1.26.0

require (
	github.com/google/go-containerregistry v0.22.1
	gotest.tools/v3 v3.5.2
	sigs.k8s.io/yaml v1.6.0
)

require (
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/klauspost/compress v1.19.2 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	go.yaml.in/yaml/v2 v2.4.2 // indirect
)
