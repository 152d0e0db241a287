package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// nodeFlags are the flags that select the configuration of the node.
type nodeFlags struct {
	file          string
	sets          []string
	componentsDir string
	dataDir       string
	logLevel      string

	join                string
	caCertHashes        []string
	bootstrapKubeconfig string
	kubeconfig          string
	nodeIP              string
}

// nodeFlagNames are the flags that nodeFlags registers.
var nodeFlagNames = []string{
	"config", "set", "components-dir", "data-dir", "log-level", "join", "ca-cert-hash", "bootstrap-kubeconfig", "kubeconfig", "node-ip",
}

func (f *nodeFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.file, "config", "", "configuration `FILE` (see: rootlessnode config default)")
	fl.StringArrayVar(&f.sets, "set", nil, "set one field, as `PATH=VALUE`; may be repeated")
	fl.StringVar(&f.componentsDir, "components-dir", "", "directory of the components")
	fl.StringVar(&f.dataDir, "data-dir", "", "directory of the node's data")
	fl.StringVar(&f.logLevel, "log-level", "", "debug, info, warning or error")
	fl.StringVar(&f.join, "join", "", "join the cluster with the API server at `URL`, https://HOST:PORT, as a worker")
	fl.StringArrayVar(&f.caCertHashes, "ca-cert-hash", nil, "pin of that cluster's certificate authority, `sha256:HEX`; may be repeated")
	fl.StringVar(&f.bootstrapKubeconfig, "bootstrap-kubeconfig", "", "join with the kubeconfig `FILE` of a user that may request a node certificate")
	fl.StringVar(&f.kubeconfig, "kubeconfig", "", "join with the kubeconfig `FILE` of the node itself")
	fl.StringVar(&f.nodeIP, "node-ip", "", "`ADDRESS` of this host at which other nodes reach it")
	complete := func(flag string, fn cobra.CompletionFunc) { _ = cmd.RegisterFlagCompletionFunc(flag, fn) } // the flags are there
	complete("set", completeFields)
	complete("log-level", cobra.FixedCompletions([]string{"debug", "info", "warning", "error"}, cobra.ShellCompDirectiveNoFileComp))
	for _, dir := range []string{"components-dir", "data-dir"} {
		_ = cmd.MarkFlagDirname(dir) // the flag is there
	}
}

// given reports whether any of the flags was given.
func (f *nodeFlags) given(fl *pflag.FlagSet) bool {
	for _, n := range nodeFlagNames {
		if fl.Changed(n) {
			return true
		}
	}
	return false
}

// build returns the configuration: the file overrides the defaults, and the flags override both. It returns the errors of all
// flags together.
func (f *nodeFlags) build(name string) (*config.NodeConfig, error) {
	cfg := config.Default()
	if f.file != "" {
		var err error
		if cfg, err = config.Load(f.file); err != nil {
			return nil, err
		}
	}
	faults := []error{cfg.UseName(name)}
	for _, kv := range f.sets {
		path, value, ok := strings.Cut(kv, "=")
		if !ok {
			faults = append(faults, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("--set %s: must have the form PATH=VALUE", kv)))
			continue
		}
		faults = append(faults, cfg.Set(path, value))
	}
	for _, path := range []*string{&f.bootstrapKubeconfig, &f.kubeconfig} {
		if *path != "" {
			var err error
			*path, err = filepath.Abs(*path)
			faults = append(faults, errdefs.Class(errdefs.ErrConfig, err))
		}
	}
	for _, o := range []struct {
		value string
		field *string
	}{
		{f.componentsDir, &cfg.ComponentsDir}, {f.dataDir, &cfg.DataDir}, {f.logLevel, &cfg.LogLevel}, {f.nodeIP, &cfg.NodeIP}, {f.join, &cfg.Join.Server},
		{f.bootstrapKubeconfig, &cfg.Join.BootstrapKubeconfig}, {f.kubeconfig, &cfg.Join.Kubeconfig},
	} {
		if o.value != "" {
			*o.field = o.value
		}
	}
	if len(f.caCertHashes) > 0 {
		cfg.Join.CACertHashes = f.caCertHashes
	}
	return cfg, errors.Join(faults...)
}

// completeFields completes the fields for --set.
func completeFields(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	var out []string
	for _, d := range config.Fields() {
		if strings.HasPrefix(d.Path+"=", typed) {
			out = append(out, cobra.CompletionWithDesc(d.Path+"=", d.Doc))
		}
	}
	return out, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}
