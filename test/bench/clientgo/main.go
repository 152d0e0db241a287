// Command clientgo measures what pieces of client-go cost in rootlessnode. internal/kubeapi has small implementations of list and
// watch, of certificate requests and of Events; docs/dependencies.md compares them with client-go's by these figures.
//
// For each piece it builds rootlessnode with one more file, in which a client of the API starts the piece once. The piece then runs in
// the node role, and every command contains its packages. Two steps:
//
//	go run ./test/bench/clientgo -build DIR    in the repository; writes DIR/PIECE/bin/rootlessnode
//	clientgo -dir DIR [-node]                  measures them in turn; -node also starts nodes, as an account that can run them
//
// With -node, DIR/PIECE must have the directories libexec and share of an installation, for example as links.
package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

//go:embed pieces
var sources embed.FS

// pieces are the measured programs, with the functions of the files in the directory pieces that they call.
var pieces = []struct {
	name  string
	files []string
}{
	{"none", nil},
	{"watch", []string{"watch"}},
	{"record", []string{"record"}},
	{"csr", []string{"csr"}},
	{"events", []string{"events"}},
	{"all", []string{"watch", "csr", "events"}},
}

// hook is the line of internal/kubeapi that makes the transport of a client, after which the pieces are started.
const hook = "\thc, err := rest.HTTPClientFor(cfg)\n"

// sample has the figures of one run. Times are in milliseconds, sizes in kilobytes.
type sample struct {
	Piece string             `json:"piece"`
	Kind  string             `json:"kind"`
	Value map[string]float64 `json:"value"`
}

type options struct {
	build, dir, name, data string
	node                   bool
	runs, nodes, port      int
	rest                   time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.build, "build", "", "build the programs into this directory and exit")
	flag.StringVar(&o.dir, "dir", "", "directory of the programs to measure")
	flag.BoolVar(&o.node, "node", false, "also start a node with each program")
	flag.IntVar(&o.runs, "runs", 40, "runs of each command")
	flag.IntVar(&o.nodes, "nodes", 3, "starts of a node with each program; one more before them is not measured")
	flag.StringVar(&o.name, "name", "clientgo", "name of the node")
	flag.StringVar(&o.data, "data-dir", "", "data dir of the node")
	flag.IntVar(&o.port, "port", 16443, "port of the host for the API server")
	flag.DurationVar(&o.rest, "rest", 20*time.Second, "pause between Ready and the reading of the memory")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := o.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func (o options) run(ctx context.Context) error {
	if o.build != "" {
		return buildAll(ctx, o.build)
	}
	if o.dir == "" {
		return errors.New("-build or -dir is required")
	}
	samples, err := o.measure(ctx)
	if len(samples) > 0 {
		text, jsonErr := json.MarshalIndent(samples, "", "  ")
		err = errors.Join(err, jsonErr, os.WriteFile("clientgo.json", text, 0o644))
		printTable(samples)
	}
	return err
}

// buildAll builds the program of each piece.
func buildAll(ctx context.Context, dir string) error {
	root, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	const client = "internal/kubeapi/client.go"
	original, err := os.ReadFile(client)
	if err != nil {
		return err
	}
	if bytes.Count(original, []byte(hook)) != 1 {
		return fmt.Errorf("%s: the place to start a piece was not found", client)
	}
	for _, p := range pieces {
		out, err := filepath.Abs(filepath.Join(dir, p.name))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(out, 0o755); err != nil {
			return err
		}
		const pkg = "internal/kubeapi/"
		files := map[string][]byte{}
		var calls strings.Builder
		for _, name := range p.files {
			text, err := sources.ReadFile("pieces/" + name + ".go")
			if err != nil {
				return err
			}
			files[pkg+"measured_"+name+".go"] = bytes.TrimPrefix(text, []byte("//go:build ignore\n"))
			fmt.Fprintf(&calls, "\tif err := measure%s(rest.CopyConfig(cfg)); err != nil {\n\t\tpanic(err)\n\t}\n", strings.ToUpper(name[:1])+name[1:])
		}
		files[client] = bytes.Replace(original, []byte(hook), []byte(hook+"\tmeasured.Do(func() { measure(cfg) })\n"), 1)
		files[pkg+"measured.go"] = []byte("package kubeapi\n\nimport (\n\t\"sync\"\n\n\t\"k8s.io/client-go/rest\"\n)\n\n" +
			"var measured sync.Once\n\nfunc measure(cfg *rest.Config) {\n" + calls.String() + "}\n")
		replace := map[string]string{}
		for name, text := range files {
			to := filepath.Join(out, filepath.Base(name))
			replace[filepath.Join(root, name)] = to
			if err := os.WriteFile(to, text, 0o644); err != nil {
				return err
			}
		}
		overlay, err := json.Marshal(map[string]any{"Replace": replace})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, "overlay.json"), overlay, 0o644); err != nil {
			return err
		}
		for _, name := range []string{"go.mod", "go.sum"} { // the pieces need more modules
			text, err := os.ReadFile(name)
			if err == nil {
				err = os.WriteFile(filepath.Join(out, name), text, 0o644)
			}
			if err != nil {
				return err
			}
		}
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-tags", "no_gvisortapvsock",
			"-mod", "mod", "-modfile", filepath.Join(out, "go.mod"), "-overlay", filepath.Join(out, "overlay.json"),
			"-o", filepath.Join(out, "bin", "rootlessnode"), "./cmd/rootlessnode")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build %s: %w", p.name, err)
		}
	}
	return nil
}

func (o options) program(piece string) string {
	return filepath.Join(o.dir, piece, "bin", "rootlessnode")
}

func (o options) measure(ctx context.Context) ([]sample, error) {
	var all []sample
	for i := range o.runs + 3 {
		for _, p := range pieces {
			v, err := command(ctx, o.program(p.name), "version")
			if err != nil {
				return all, err
			}
			if i >= 3 { // the first runs fill the page cache
				all = append(all, sample{p.name, "version", v})
			}
		}
	}
	if !o.node {
		return all, nil
	}
	if _, err := o.start(ctx, pieces[0].name); err != nil { // creates the cluster and fills the page cache
		return all, err
	}
	for range o.nodes {
		for _, p := range pieces {
			got, err := o.start(ctx, p.name)
			if err != nil {
				return all, fmt.Errorf("node with %s: %w", p.name, err)
			}
			all = append(all, got...)
		}
	}
	return all, nil
}

var initLine = regexp.MustCompile(`(?m)^init \S+ @\S+ ms, (\S+) ms clock, (\d+) bytes`)

// command runs a command, and once more with a trace of the initialisation of packages.
func command(ctx context.Context, argv ...string) (map[string]float64, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	t0 := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	wall, ps := time.Since(t0), cmd.ProcessState
	usage, ok := ps.SysUsage().(*syscall.Rusage)
	if !ok {
		return nil, errors.New("no resource usage")
	}
	v := map[string]float64{"wall": ms(wall), "cpu": ms(ps.UserTime() + ps.SystemTime()), "maxrss": float64(usage.Maxrss)}
	cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	trace, err := cmd.CombinedOutput()
	for _, m := range initLine.FindAllStringSubmatch(string(trace), -1) {
		took, parseErr := strconv.ParseFloat(m[1], 64)
		size, sizeErr := strconv.ParseFloat(m[2], 64)
		err = errors.Join(err, parseErr, sizeErr)
		v["init"] += took
		v["initKB"] += size / 1024
	}
	return v, err
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// start starts a node, measures it and exec in it, and stops it.
func (o options) start(ctx context.Context, piece string) (all []sample, err error) {
	bin := o.program(piece)
	run := func(args ...string) ([]byte, error) {
		out, err := exec.CommandContext(ctx, bin, append([]string{"--name", o.name}, args...)...).Output()
		if err != nil {
			err = fmt.Errorf("rootlessnode %s: %w: %s", args[0], err, out)
		}
		return out, err
	}
	up := []string{"up", "--kubeconfig-merge=false", "--set", "api.port=" + strconv.Itoa(o.port)}
	if o.data != "" {
		up = append(up, "--data-dir", o.data)
	}
	t0 := time.Now()
	if _, err := run(up...); err != nil {
		return nil, err
	}
	took := time.Since(t0)
	defer func() {
		_, downErr := run("down")
		err = errors.Join(err, downErr)
	}()
	out, err := run("status", "-o", "json")
	if err != nil {
		return nil, err
	}
	var st status.Status
	if err := json.Unmarshal(out, &st); err != nil {
		return nil, err
	}
	node := filepath.Join(st.Cgroup.Path, "system", "node")
	v := map[string]float64{"ready": ms(took), "cpu": value(filepath.Join(node, "cpu.stat"), "usage_usec ") / 1000}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(o.rest):
	}
	// The node role is the first process of its cgroup. Others are programs that it runs at the moment.
	pid, _, _ := strings.Cut(read(filepath.Join(node, "cgroup.procs")), "\n")
	for _, key := range []string{"VmRSS", "RssAnon", "RssFile"} {
		v[key] = value(filepath.Join("/proc", pid, "status"), key+":")
	}
	if v["VmRSS"] == 0 {
		return nil, fmt.Errorf("no memory of the node role %q", pid)
	}
	all = append(all, sample{piece, "node role", v})
	for range o.runs / 2 {
		got, err := command(ctx, bin, "--name", o.name, "exec", "--", "true")
		if err != nil {
			return nil, err
		}
		all = append(all, sample{piece, "exec -- true", got})
	}
	return all, nil
}

func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

// value returns the number after key at the start of a line, or 0 if the line is missing.
func value(path, key string) float64 {
	for line := range strings.Lines(read(path)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return n
		}
	}
	return 0
}

// printTable prints the medians, and the differences from the program without a piece.
func printTable(samples []sample) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	for _, kind := range []struct {
		name    string
		columns []string
	}{
		{"version", []string{"wall", "cpu", "init", "initKB", "maxrss"}},
		{"exec -- true", []string{"wall", "cpu", "init", "initKB", "maxrss"}},
		{"node role", []string{"ready", "cpu", "VmRSS", "RssAnon", "RssFile"}},
	} {
		var n int
		median := func(piece, column string) float64 {
			var all []float64
			for _, s := range samples {
				if s.Piece == piece && s.Kind == kind.name {
					all = append(all, s.Value[column])
				}
			}
			if n = len(all); n == 0 {
				return 0
			}
			slices.Sort(all)
			return (all[(n-1)/2] + all[n/2]) / 2
		}
		if median("none", kind.columns[0]); n == 0 {
			continue
		}
		_, _ = fmt.Fprintf(w, "%s, %d runs\t%s\t\n", kind.name, n, strings.Join(kind.columns, "\t"))
		for _, p := range pieces {
			line := p.name
			for _, c := range kind.columns {
				m := median(p.name, c)
				if n == 0 {
					continue
				}
				line += fmt.Sprintf("\t%.2f (%+.2f)", m, m-median("none", c))
			}
			_, _ = fmt.Fprintln(w, line+"\t")
		}
	}
	_ = w.Flush()
}
