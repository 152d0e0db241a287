package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/rootlessnode/rootlessnode/test/conformance/internal/images"
	"github.com/rootlessnode/rootlessnode/test/conformance/internal/suite"
)

// Names in the directory that build writes and run reads.
const (
	programsDir  = "programs"
	imageArchive = "images.tar"
	// pauseArchive is a copy of the node's pause image, which a test image serves as a registry.
	pauseArchive = "pause.tar"
)

func build(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("conformance build", flag.ContinueOnError)
	dir := fs.String("dir", "", "output directory; files in it that are up to date are kept")
	top := fs.String("source", ".", "root of rootlessnode's source tree")
	pause := fs.String("pause", "", "archive of the node's pause image")
	if err := parse(fs, args); err != nil {
		return err
	}
	if *dir == "" || *pause == "" {
		return fmt.Errorf("%w: -dir and -pause are needed", errUsage)
	}
	root, err := filepath.Abs(*top)
	if err != nil {
		return err
	}
	target, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}
	programs := filepath.Join(target, programsDir)
	if err := suite.Build(ctx, root, programs, os.Stdout); err != nil {
		return err
	}
	if err := copyFile(*pause, filepath.Join(programs, pauseArchive)); err != nil {
		return err
	}
	return buildImages(ctx, target)
}

// buildImages builds the archive of images if its inputs have changed. New versions of Debian packages do not count as a change, because
// the images do not need them.
func buildImages(ctx context.Context, dir string) error {
	programs, archive := filepath.Join(dir, programsDir), filepath.Join(dir, imageArchive)
	key, err := imagesKey(programs)
	if err != nil {
		return err
	}
	keyFile := archive + ".key"
	if old, err := os.ReadFile(keyFile); err == nil && string(old) == key {
		if _, err := os.Stat(archive); err == nil {
			return nil
		}
	}
	wanted, err := suite.Images(ctx, programs)
	if err != nil {
		return err
	}
	if err := images.Check(wanted); err != nil {
		return err
	}
	fmt.Println("building images")
	if err := images.Build(ctx, programs, filepath.Join(dir, "work"), archive); err != nil {
		return err
	}
	return os.WriteFile(keyFile, []byte(key), 0o644)
}

// imagesKey returns a key that changes with the recipes and with the programs.
func imagesKey(programs string) (string, error) {
	h := sha256.New()
	h.Write(images.Recipes())
	files, err := os.ReadDir(programs)
	if err != nil {
		return "", err
	}
	for _, f := range files {
		if suite.IsRunner(f.Name()) {
			continue
		}
		fmt.Fprintln(h, f.Name())
		if err := read(h, filepath.Join(programs, f.Name())); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func read(w io.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return errors.Join(err, f.Close())
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}
