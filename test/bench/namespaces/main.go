// Command namespaces is a node of which only the outside exists: our parent, guard and child as in `rootlessnode up`,
// and in place of the node role a program that writes one line and ends with its standard input. It shows what lock,
// cgroup, namespaces, network and file system cost.
//
//	namespaces EFFECTIVE-CONFIG RUNTIME-DIR
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/child"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/parent"
)

func main() {
	log := logrus.New()
	if err := role(log); err != nil {
		log.Error(err)
		os.Exit(1)
	}
}

func role(log *logrus.Logger) error {
	switch {
	case os.Getenv(layout.EnvPipeFD) != "":
		return child.Run(log)
	case os.Getenv(layout.EnvRole) == layout.RoleNode:
		fmt.Println("inside")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case os.Getenv(layout.EnvRole) == layout.RoleGuard:
		return parent.RunGuard(log)
	}
	var cfg config.NodeConfig
	if err := layout.ReadJSON(os.Args[1], &cfg); err != nil {
		return err
	}
	return parent.Run(context.Background(), parent.Options{Config: &cfg, Runtime: layout.Runtime{Dir: os.Args[2]}, Log: log})
}
