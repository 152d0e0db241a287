package main

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// nodeFlags are the flags that select the configuration of the node.
type nodeFlags struct {
	file               string
	sets, caCertHashes []string
	// all are these flags and those of fieldFlags.
	all *pflag.FlagSet
}

// fieldFlags are the flags that set one field of the configuration. A file is relative to the working directory.
var fieldFlags = []struct {
	name, field, usage string
	isFile             bool
}{
	{name: "components-dir", field: "componentsDir", usage: "directory of the components"},
	{name: "data-dir", field: "dataDir", usage: "directory of the node's data"},
	{name: "log-level", field: "logLevel", usage: "debug, info, warning or error"},
	{name: "join", field: "join.server", usage: "join the cluster with the API server at `URL`, https://HOST:PORT, as a worker"},
	{name: "bootstrap-kubeconfig", field: "join.bootstrapKubeconfig", isFile: true,
		usage: "join with the kubeconfig `FILE` of a user that may request a node certificate"},
	{name: "kubeconfig", field: "join.kubeconfig", isFile: true, usage: "join with the kubeconfig `FILE` of the node itself"},
	{name: "node-ip", field: "nodeIP", usage: "`ADDRESS` of this host at which other nodes reach it"},
}

func (f *nodeFlags) register(cmd *cobra.Command) {
	f.all = pflag.NewFlagSet("", pflag.ContinueOnError)
	f.all.StringVar(&f.file, "config", "", "configuration `FILE` (see: rootlessnode config default)")
	f.all.StringArrayVar(&f.sets, "set", nil, "set one field, as `PATH=VALUE`; may be repeated")
	f.all.StringArrayVar(&f.caCertHashes, "ca-cert-hash", nil, "pin of that cluster's certificate authority, `sha256:HEX`; may be repeated")
	for _, x := range fieldFlags {
		f.all.String(x.name, "", x.usage)
	}
	cmd.Flags().AddFlagSet(f.all)
	_ = cmd.RegisterFlagCompletionFunc("set", completeFields) // the flags are there
	completeValues(cmd, "log-level", "debug", "info", "warning", "error")
	for _, dir := range []string{"components-dir", "data-dir"} {
		_ = cmd.MarkFlagDirname(dir)
	}
}

// given reports whether any of the flags was given.
func (f *nodeFlags) given() bool {
	given := false
	f.all.VisitAll(func(x *pflag.Flag) { given = given || x.Changed })
	return given
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
			faults = append(faults, errdefs.Config("--set %s: must have the form PATH=VALUE", kv))
			continue
		}
		faults = append(faults, cfg.Set(path, value))
	}
	for _, x := range fieldFlags {
		value := f.all.Lookup(x.name).Value.String()
		if value == "" {
			continue
		}
		if x.isFile {
			var err error
			value, err = filepath.Abs(value)
			faults = append(faults, errdefs.Class(errdefs.ErrConfig, err))
		}
		faults = append(faults, cfg.Set(x.field, value))
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
