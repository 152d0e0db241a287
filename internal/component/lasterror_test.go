package component

import (
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

// TestLastError has the last lines of programs that failed to start.
func TestLastError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lines []string
		want  string
	}{
		"etcd, damaged log": {[]string{
			"2026-12-01T12:33:21.661101Z\terror\tembed/etcd.go:260\tsetting up serving failed",
			"2026-12-01T12:33:21.661189Z\tfatal\tetcdmain/etcd.go:157\tdiscovery failed\t{\"error\": \"walpb: crc mismatch\"}",
			"go.etcd.io/etcd/server/v3/etcdmain.startEtcdOrProxyV2", "\tgo.etcd.io/etcd/server/v3@v3.7.3/etcdmain/etcd.go:157",
		}, `discovery failed {"error": "walpb: crc mismatch"}`},
		"etcd, damaged database": {[]string{
			"2026-12-01T12:33:21.661189Z\tpanic\tbackend/backend.go:215\tfailed to open database\t{\"error\": \"invalid database\"}",
			"panic: failed to open database", "", "goroutine 92 [running]:",
		}, `failed to open database {"error": "invalid database"}`},
		"Kubernetes": {[]string{
			`I1201 12:00:00.000000      97 server.go:1] starting`,
			`E1201 12:00:00.123456      97 run.go:72] "command failed" err="failed to load kubelet config file"`,
		}, `"command failed" err="failed to load kubelet config file"`},
		"klog": {[]string{`F1201 12:00:00.123456      97 main.go:7] cannot listen`, "goroutine 1 [running]:"}, "cannot listen"},
		"containerd": {[]string{
			`time="2026-12-01T12:00:00Z" level=info msg="starting"`, `time="2026-12-01T12:00:00Z" level=fatal msg="bind: address already in use"`,
		}, `msg="bind: address already in use"`},
		"containerd, short":          {[]string{"containerd: failed to get listener", `level=error msg="x"`}, `msg="x"`},
		"cobra":                      {[]string{"Usage:", "Error: unknown flag: --x"}, "unknown flag: --x"},
		"Go":                         {[]string{"panic: runtime error: index out of range", "goroutine 1 [running]:"}, "runtime error: index out of range"},
		"a mapped file is too short": {[]string{"unexpected fault address 0x7f", "fatal error: fault", "[signal SIGBUS: bus error code=0x2]"}, "unexpected fault address 0x7f"},
		"flanneld":                   {[]string{"E1201 12:56:23.928353     336 subnet.go:123] could not watch leases", "flanneld: error: no space"}, "no space"},
		"the last of two":            {[]string{"Error: first", "Error: second"}, "second"},
		"nothing":                    {[]string{"I1201 12:00:00.000000      97 server.go:1] serving", ""}, ""},
		"no output":                  {nil, ""},
	} {
		assert.Equal(t, LastError(c.lines), c.want, name)
	}
	assert.Equal(t, len(LastError([]string{"Error: " + strings.Repeat("x", 1000)})), lastErrorBytes)
}

func TestFindFault(t *testing.T) {
	t.Parallel()
	own := []Fault{{Texts: []string{"crc mismatch"}, Reason: "Damaged"}}
	for line, reason := range map[string]string{
		"wal: crc mismatch": "Damaged", "write: no space left on device": "DiskFull", "open x: read-only file system": "DataReadOnly", "other": "", "": "",
	} {
		f, ok := FindFault(line, own)
		assert.Assert(t, f.Reason == reason && ok == (reason != ""), "%q: %+v", line, f)
	}
}
