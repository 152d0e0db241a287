package node

// Version is the version of rootlessnode. Builds set it with -ldflags "-X github.com/rootlessnode/rootlessnode/pkg/node.Version=v1.2.3".
var Version = "v0.0.0-dev"
