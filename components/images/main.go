// Command images writes one OCI image archive from existing programs. It is a
// step of the component build and does not build programs itself.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/rootlessnode/rootlessnode/components/images/internal/ociarchive"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "images: error:", err)
		os.Exit(1)
	}
}

func run(args []string) (err error) {
	image := ociarchive.Image{Files: map[string]string{}}
	fs := flag.NewFlagSet("images", flag.ContinueOnError)
	output := fs.String("o", "", "archive to write")
	fs.StringVar(&image.Name, "name", "", "full name of the image, with its tag")
	fs.StringVar(&image.User, "user", "", "USER[:GROUP] that the image runs as")
	fs.StringVar(&image.Architecture, "arch", runtime.GOARCH, "architecture of the programs")
	fs.Func("entrypoint", "an element of the command; repeatable", func(v string) error {
		image.Entrypoint = append(image.Entrypoint, v)
		return nil
	})
	fs.Func("file", "/NAME=FILE: a file of the image and where it comes from; repeatable", func(v string) error {
		name, source, ok := strings.Cut(v, "=")
		if !ok || source == "" {
			return errors.New("not of the form /NAME=FILE")
		}
		image.Files[name] = source
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *output == "" || fs.NArg() > 0 {
		return errors.New("-o is needed, and no arguments besides flags")
	}

	file, err := os.Create(*output)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return ociarchive.Write(file, image)
}
