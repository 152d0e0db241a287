module github.com/rootlessnode/rootlessnode/components/images

go 1.26.0

require (
	github.com/opencontainers/go-digest v1.0.0
	github.com/opencontainers/image-spec v1.1.1
)

require (
	github.com/google/go-cmp v0.5.9 // indirect
	gotest.tools/v3 v3.5.2
)
