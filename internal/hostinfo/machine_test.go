package hostinfo

import (
	"testing"

	"gotest.tools/v3/assert"
)

func TestReadMachine(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	_, err := ReadMachine(root)
	assert.ErrorContains(t, err, "memory")
	write(t, root, "proc/meminfo", "MemTotal:        8000000 kB\nMemFree:  1 kB\n")
	_, err = ReadMachine(root)
	assert.ErrorContains(t, err, "CPUs")
	write(t, root, "proc/cpuinfo", "processor\t: 0\nmodel\t: x\n\nprocessor\t: 1\n")
	m, err := ReadMachine(root)
	assert.NilError(t, err)
	assert.Equal(t, m, Machine{CPUs: 2, MemoryBytes: 8000000 << 10})
	write(t, root, "sys/devices/system/cpu/online", "0-2,5\n")
	write(t, root, "proc/sys/kernel/pid_max", "4194304\n")
	write(t, root, "proc/sys/kernel/threads-max", "63000\n")
	m, err = ReadMachine(root)
	assert.NilError(t, err)
	assert.Equal(t, m, Machine{CPUs: 4, MemoryBytes: 8000000 << 10, Tasks: 63000})
}

func TestCountList(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]int{"": 0, "0": 1, "0-3,8": 5} {
		n, err := CountList(list)
		assert.NilError(t, err)
		assert.Equal(t, n, want, list)
	}
	for _, bad := range []string{"a", "1-", "3-1", "-1", "1,,2"} {
		_, err := CountList(bad)
		assert.Assert(t, err != nil, bad)
	}
}
