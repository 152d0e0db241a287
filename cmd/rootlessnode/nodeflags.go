package main

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// nodeFlags are the flags that select the configuration of the node.
type nodeFlags struct {
	file                       string
	sets, unsets, caCertHashes []string
	// reset ignores the settings of the last start.
	reset bool
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
	{name: "kubeconfig-merge", field: "kubeconfigMerge", usage: "add the node's context to the kubeconfig that kubectl uses: true or false"},
	{name: "log-level", field: "logLevel", usage: "debug, info, warning or error"},
	{name: "join", field: "join.server", usage: "join the cluster with the API server at `URL`, https://HOST:PORT, as a worker"},
	{name: "bootstrap-kubeconfig", field: "join.bootstrapKubeconfig", isFile: true,
		usage: "join with the kubeconfig `FILE` of a user that may request a node certificate"},
	{name: "kubeconfig", field: "join.kubeconfig", isFile: true, usage: "join with the kubeconfig `FILE` of the node itself"},
	{name: "registry", field: "localRegistry.enabled", usage: "run a registry for images on this node at localhost:5000 (localRegistry.port): true or false"},
	{name: "node-ip", field: "nodeIP", usage: "`ADDRESS` of this host at which other nodes reach it"},
}

func (f *nodeFlags) register(cmd *cobra.Command) {
	f.all = pflag.NewFlagSet("", pflag.ContinueOnError)
	f.all.StringVar(&f.file, "config", "", "configuration `FILE` (see: rootlessnode config default); replaces all settings of the last start")
	f.all.StringArrayVar(&f.sets, "set", nil, "set one field, as `PATH=VALUE`; may be repeated")
	f.all.StringArrayVar(&f.unsets, "unset", nil, "forget the value of the field `PATH` that the last start remembers; may be repeated")
	f.all.BoolVar(&f.reset, "reset-config", false, "forget the flags and the configuration file of the last start")
	f.all.StringArrayVar(&f.caCertHashes, "ca-cert-hash", nil, "pin of that cluster's certificate authority, `sha256:HEX`; may be repeated")
	for _, x := range fieldFlags {
		f.all.String(x.name, "", x.usage)
	}
	for _, name := range []string{"kubeconfig-merge", "registry"} {
		f.all.Lookup(name).NoOptDefVal = "true"
	}
	cmd.Flags().AddFlagSet(f.all)
	_ = cmd.RegisterFlagCompletionFunc("set", completeSettings) // the flags are there
	_ = cmd.RegisterFlagCompletionFunc("unset", completeFields)
	completeValues(cmd, "log-level", "debug", "info", "warning", "error")
	completeValues(cmd, "kubeconfig-merge", "true", "false")
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

// line returns the given flags as on a command line, each after a blank.
func (f *nodeFlags) line() string {
	line := ""
	f.all.VisitAll(func(x *pflag.Flag) {
		if !x.Changed {
			return
		}
		values := []string{x.Value.String()}
		if list, ok := x.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, v := range values {
			line += " --" + x.Name
			switch {
			case x.Value.Type() == "bool":
			case x.NoOptDefVal != "":
				line += "=" + hostinfo.Quote(v)
			default:
				line += " " + hostinfo.Quote(v)
			}
		}
	})
	return line
}

// build returns the configuration of a start with the flags, and its settings. It reports all errors together.
func (f *nodeFlags) build(a *app) (*config.NodeConfig, config.Settings, error) {
	set, err := f.settings(a)
	cfg, invalid := set.Build(a.name)
	return cfg, set, errors.Join(err, invalid)
}

// settings returns what the flags set. Unless --config or --reset-config is given, it is on top of the settings of the last start.
func (f *nodeFlags) settings(a *app) (config.Settings, error) {
	set, err := f.explicit()
	if err != nil || f.reset || f.file != "" {
		return set, errors.Join(err, f.drop(&set))
	}
	if last := a.lastSettings(a.name, dataDirOf(set)); last != nil {
		again := *last
		if err := again.Reread(); err != nil {
			return set, errdefs.Config("the configuration file of the last start of node %q: %w", a.name, err).
				Hint("# restore the file, or use another one:\n" + a.command("up --config FILE") + "\n# or start without it, with defaults:\n" + a.command("up --reset-config"))
		}
		set = set.Over(again)
	}
	return set, f.drop(&set)
}

// explicit returns what the flags set. It reports the errors of all flags together.
func (f *nodeFlags) explicit() (config.Settings, error) {
	var set config.Settings
	var faults []error
	if f.file != "" {
		var err error
		set, err = config.ReadSettings(f.file)
		faults = append(faults, err)
	}
	for _, kv := range f.sets {
		path, value, ok := strings.Cut(kv, "=")
		if !ok {
			faults = append(faults, errdefs.Config("--set %s: must have the form PATH=VALUE", kv))
			continue
		}
		set.Set(path, value)
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
		set.Set(x.field, value)
	}
	if len(f.caCertHashes) > 0 {
		set.Set("join.caCertHashes", strings.Join(f.caCertHashes, ","))
	}
	return set, errors.Join(faults...)
}

// drop removes the fields of --unset.
func (f *nodeFlags) drop(set *config.Settings) error {
	var faults []error
	for _, path := range f.unsets {
		if !set.Unset(path) {
			faults = append(faults, errdefs.Config("--unset %s: no flag of the last start has set this field", path))
		}
	}
	return errors.Join(faults...)
}

// dataDirOf returns the data dir that the settings select, or "".
func dataDirOf(set config.Settings) string {
	cfg, err := set.Build(config.DefaultName)
	if err != nil {
		return "" // reported when the settings are used
	}
	return cfg.DataDir
}
