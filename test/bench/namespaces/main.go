// Command namespaces runs rootlessnode's parent, guard and child as `rootlessnode up` does. The node role is replaced by a program that
// writes one line and ends when its standard input is closed. It measures the cost of lock, cgroup, namespaces, network and file system.
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
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/child"
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
	switch name, rt := layout.TakeRole(); name {
	case layout.RoleChild:
		return child.Run(log, rt)
	case layout.RoleNode:
		fmt.Println("inside")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case layout.RoleGuard:
		return parent.RunGuard(log, rt)
	}
	var cfg config.NodeConfig
	if err := layout.ReadJSON(os.Args[1], &cfg); err != nil {
		return err
	}
	return parent.Run(context.Background(), parent.Options{Config: &cfg, Runtime: layout.Runtime{Dir: os.Args[2]}, Log: log})
}
