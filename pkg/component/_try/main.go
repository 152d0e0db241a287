package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/component"
	"github.com/rootlessnode/rootlessnode/pkg/component/apiserver"
	"github.com/rootlessnode/rootlessnode/pkg/component/controllermanager"
	"github.com/rootlessnode/rootlessnode/pkg/component/etcd"
	"github.com/rootlessnode/rootlessnode/pkg/component/pki"
	"github.com/rootlessnode/rootlessnode/pkg/component/resources"
	"github.com/rootlessnode/rootlessnode/pkg/component/scheduler"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

func must(err error) {
	if err != nil {
		fmt.Println("FAULT", err)
		os.Exit(1)
	}
}

var t0 = time.Now()

func say(f string, a ...any) { fmt.Printf("%6.3f %s\n", time.Since(t0).Seconds(), fmt.Sprintf(f, a...)) }

func start(r component.Rendered, err error, ready func(context.Context) error) *exec.Cmd {
	must(err)
	must(component.MakeDirs(r.Dirs))
	must(component.Write(r.Files))
	c := exec.Command(r.Path, r.Args...)
	c.Env = append(os.Environ(), r.Env...)
	log, err := os.Create("/tmp/comp-t/" + r.Name + ".log")
	must(err)
	c.Stdout, c.Stderr = log, log
	must(c.Start())
	say("%s started", r.Name)
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	var last string
	for {
		select {
		case err := <-done:
			say("%s ended: %v", r.Name, err)
			os.Exit(1)
		case <-time.After(20 * time.Millisecond):
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := ready(ctx)
		cancel()
		if err == nil {
			break
		}
		if err.Error() != last {
			last = err.Error()
			say("  %s", last)
		}
	}
	say("%s ready", r.Name)
	return c
}

func main() {
	cfg := config.Default()
	cfg.NodeName, cfg.Cluster.DNSAddress = "n1", "10.43.0.10"
	cfg.ControlPlane.APIServerExtraArgs = os.Args[1:]
	e := component.Env{
		Config: cfg, HostName: "h", NodeIP: "10.0.2.100", APIServerURL: "https://127.0.0.1:6443", TapInterface: "tap0", TapMTU: 1500,
		NameServers: []string{"10.0.2.3"}, Snapshotter: "overlayfs", KubeProxyMode: "nftables", OCIRuntime: "/x/runc",
		BinDir: func(n string) string {
			for _, d := range []string{"/tmp/comp-t", "/work/main/_out/libexec/rootlessnode"} {
				if _, err := os.Stat(filepath.Join(d, n)); err == nil {
					return filepath.Join(d, n)
				}
			}
			return n
		},
		LocalStorageCapacityIsolation: true,
	}
	spec, err := pki.NodeSpec(e)
	must(err)
	ch, err := pki.Ensure(layout.InsidePKI, spec, time.Now())
	must(err)
	say("pki %d created %d renewed", len(ch.Created), len(ch.Renewed))
	r, err := etcd.Render(e)
	c1 := start(r, err, etcd.Ready(e))
	r, err = apiserver.Render(e)
	c2 := start(r, err, apiserver.Ready(e))
	r, err = controllermanager.Render(e)
	c3 := start(r, err, controllermanager.Ready(e))
	r, err = scheduler.Render(e)
	c4 := start(r, err, scheduler.Ready(e))
	admin, err := pki.FileKubeconfig(pki.Admin, e.APIServerURL, "c")
	must(err)
	must(os.WriteFile("/run/rootlessnode/admin", admin, 0o600))
	m, err := resources.Manifests(e)
	must(err)
	must(os.WriteFile("/run/rootlessnode/m.yaml", m, 0o600))
	sh := exec.Command("sh", "-c", os.Getenv("CHECK"))
	sh.Stdout, sh.Stderr = os.Stdout, os.Stdout
	sh.Env = append(os.Environ(), "KUBECONFIG=/run/rootlessnode/admin")
	_ = sh.Run()
	for _, c := range []*exec.Cmd{c4, c3, c2, c1} {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
		var rss string
		for _, l := range splitLines(string(b)) {
			if len(l) > 5 && l[:5] == "VmRSS" {
				rss = l
			}
		}
		fmt.Println(filepath.Base(c.Path), rss)
		_ = c.Process.Kill()
	}
}

func splitLines(s string) (out []string) {
	for i := 0; i < len(s); {
		j := i
		for j < len(s) && s[j] != '\n' {
			j++
		}
		out = append(out, s[i:j])
		i = j + 1
	}
	return
}
