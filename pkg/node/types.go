package node

import (
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
)

// Types of arguments and results.
type (
	// Finding is the result of one check of the host.
	Finding = preflight.Finding
	// ExecRequest describes a program to run inside the node.
	ExecRequest = nodeexec.Request
	// BootstrapToken is a token with which machines can join the cluster.
	BootstrapToken = kubeapi.BootstrapToken
	// DeletedData lists what DeleteData removed and what it kept.
	DeletedData = datadir.Result
	// RuntimePaths are the paths of the files in the node's runtime dir.
	RuntimePaths = layout.Runtime
	// DataPaths are the paths of the files in the node's data dir.
	DataPaths = layout.Data
)
