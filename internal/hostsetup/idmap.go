package hostsetup

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// idMapProgram is a program that maps ids, and the capability that it needs.
type idMapProgram struct {
	path, name string
	number     int
}

// idMapStep makes newuidmap and newgidmap work in a container whose root does not have CAP_SYS_ADMIN. A process needs that
// capability in the new namespace to write its maps. The creator of the namespace has it there, but root has it only if it has it
// outside (user_namespaces(7)). Set-uid root programs run as that root without the capability, programs with a file capability
// run as the creator.
func idMapStep(p *Plan) (Step, error) {
	e := p.env
	const step = "idmaps"
	if !hostinfo.LacksSysAdmin(e.path("/")) && !p.record.has(step) {
		return Step{}, nil
	}
	programs := setuidPrograms(e)
	s := Step{
		Name: step, Title: "let newuidmap and newgidmap map ids without CAP_SYS_ADMIN",
		Why:    "root in this container does not have it, so set-uid root is not sufficient",
		Needed: func() (bool, error) { return len(programs) > 0, nil },
		Do: func(context.Context) error {
			for _, program := range programs {
				before, err := program.change()
				if err != nil {
					return err
				}
				p.record.add(step, entry{Before: map[string]string{program.path: before}, After: map[string]string{program.path: program.name + "=ep"}})
			}
			return nil
		},
		Undo: func(context.Context) error {
			before := p.record.Steps[step].Before
			for _, path := range sortedKeys(before) {
				if p.record.usedByOthers(step, path) {
					continue
				}
				if err := restoreMode(path, before[path]); err != nil {
					return err
				}
			}
			return nil
		},
	}
	for _, program := range programs {
		s.Commands = append(s.Commands, "setcap "+program.name+"=ep "+program.path, "chmod u-s "+program.path)
	}
	return s, nil
}

// setuidPrograms returns the installed programs that are set-uid root.
func setuidPrograms(e *env) []idMapProgram {
	all := []idMapProgram{
		{e.LookPath("newuidmap"), "cap_setuid", unix.CAP_SETUID}, {e.LookPath("newgidmap"), "cap_setgid", unix.CAP_SETGID},
	}
	return slices.DeleteFunc(all, func(p idMapProgram) bool {
		var st unix.Stat_t
		return p.path == "" || unix.Stat(p.path, &st) != nil || st.Mode&unix.S_ISUID == 0 || st.Uid != 0
	})
}

const capabilityAttr = "security.capability"

// change replaces set-uid root of the program by the file capability and returns its previous mode. The attribute is struct
// vfs_cap_data of linux/capability.h, revision 2 with the effective bit. The kernel itself adds the root uid of the namespace.
func (p idMapProgram) change() (before string, err error) {
	st, err := os.Stat(p.path)
	if err != nil {
		return "", err
	}
	attr := make([]byte, 20)
	binary.LittleEndian.PutUint32(attr, 0x02000000|1)
	binary.LittleEndian.PutUint32(attr[4:], 1<<p.number)
	// Set the attribute first: if the file system rejects it, nothing is changed.
	if err := unix.Setxattr(p.path, capabilityAttr, attr, 0); err != nil {
		return "", &os.PathError{Op: "setxattr " + capabilityAttr, Path: p.path, Err: err}
	}
	if err := os.Chmod(p.path, st.Mode()&^os.ModeSetuid); err != nil {
		return "", err
	}
	return fmt.Sprintf("%04o", st.Mode().Perm()|0o4000), nil
}

// restoreMode reverts change: it removes the capability and sets set-uid.
func restoreMode(path, mode string) error {
	m, err := strconv.ParseUint(mode, 8, 12)
	if err != nil {
		return err
	}
	if err := unix.Removexattr(path, capabilityAttr); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODATA) {
		return &os.PathError{Op: "removexattr " + capabilityAttr, Path: path, Err: err}
	}
	if err := os.Chmod(path, os.FileMode(m).Perm()|os.ModeSetuid); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}
