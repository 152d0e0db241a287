// Command embed is a program that embeds a Kubernetes node. It starts the node, waits until it is Ready, and stops it on Ctrl-C.
// The node also ends, with all its processes, when the program is killed.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

func main() {
	node.Dispatch() // must come first: the node's processes execute this program too
	cfg := config.Default()
	cfg.Name, cfg.API.Port = "embed", 16443
	n, err := node.New(cfg, node.Options{})
	check(err)
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	check(n.Start(ctx))
	ready, stop := context.WithTimeout(ctx, cfg.Timeouts.Ready.D())
	check(n.WaitReady(ready, nil))
	stop()
	fmt.Println("ready:", n.Kubeconfig())
	if len(os.Args) > 1 { // with any argument, stop immediately
		cancel()
	}
	<-ctx.Done()
	end, done := context.WithTimeout(context.Background(), time.Minute)
	defer done()
	check(n.Stop(end))
}

func check(err error) {
	if err == nil {
		return
	}
	report := errdefs.ReportOf(err)
	report.Render(words)
	log.Fatal(strings.Join(append([]string{report.Message}, report.Hints...), "\n"))
}

// words returns what the user of this program can do for an action. The command lines of rootlessnode are not available here.
func words(s errdefs.Step) string {
	switch s.Action {
	case errdefs.Start:
		return "run this program again " + strings.Join(s.Args, " ")
	case errdefs.Stop:
		return "press Ctrl-C in the other instance of this program"
	}
	return errdefs.Hint{{Action: s.Action, Args: s.Args}}.String() // plain words
}
