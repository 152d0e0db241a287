package etcd

import (
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// ReasonDamaged is the reason of the fault that the data is damaged, and Restore its fix.
const ReasonDamaged = "DataDamaged"

// Restore is how to fix damaged data.
func Restore() errdefs.Hint {
	return errdefs.Text("# stop the node and restore the directory etcd of the data dir from a backup, or start with new data:").
		Do(errdefs.DeleteData)
}

// Faults are the known causes for which etcd ends.
func Faults() []component.Fault {
	return []component.Fault{
		{
			Texts: []string{"permission denied"}, Reason: "DataNotAccessible",
			Fix: errdefs.Text("# restore the owner and the mode of the directory etcd of the data dir"),
		},
		{
			Texts: []string{
				"crc mismatch", "checksum", "corrupt", "invalid database", "unexpected EOF", "failed to recover v3 backend",
				"failed to get all reachable pages", "snapshot file doesn't exist", "version mismatch", "failed to open database",
				"file too small", "failed to read WAL", "Page expected to be", "unexpected fault address",
			},
			Reason: ReasonDamaged, Fix: Restore(),
		},
	}
}
