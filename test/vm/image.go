package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
)

// rootScript creates the root file system. It runs with bash, in a directory of its own.
//
//go:embed root.sh
var rootScript string

// guestInit is the program that the kernel starts on a machine without systemd.
const guestInit = "/usr/local/sbin/guest-init"

// rootKey identifies the content of the root image: its directory in the cache has this name.
func rootKey() string { return fmt.Sprintf("%x", sha256.Sum256([]byte(rootScript)))[:16] }

// prepareImages creates the files that all machines share: the root image, which is cached, and the image of the installed build.
func (h *host) prepareImages(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(h.base, "root.ext4")); err != nil {
		cache := filepath.Dir(h.base)
		fresh := filepath.Join(cache, "new")
		if err := errors.Join(os.RemoveAll(cache), os.MkdirAll(fresh, 0o755)); err != nil { //nolint:gosec // QEMU reads it
			return err
		}
		say("making the virtual machine's file system")
		cmd := exec.CommandContext(ctx, "bash", "-c", rootScript)
		cmd.Dir = fresh
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("create the root file system: %w: %s", err, out)
		}
		if err := os.Rename(fresh, h.base); err != nil {
			return err
		}
	}
	if _, err := user.Lookup(h.account); err != nil {
		if err := do(ctx, "useradd", "--create-home", "--shell", "/bin/bash", h.account); err != nil {
			return err
		}
	}
	return h.treeImage(ctx)
}

func (h *host) treeFile() string { return filepath.Join(h.stage, "tree.ext4") }

// treeImage creates the image with the installed build, the end-to-end tests and the image of their pods.
func (h *host) treeImage(ctx context.Context) error {
	dir := filepath.Join(h.stage, "tree")
	if err := do(ctx, "hack/install.sh", h.out, dir); err != nil {
		return err
	}
	at := func(names ...string) (paths []string) {
		for _, name := range names {
			paths = append(paths, filepath.Join(h.out, name))
		}
		return paths
	}
	programs := append(append([]string{"install", "-m", "0755"}, at("bin/e2e.test", "bin/embed", "test/netprobe")...), filepath.Join(dir, "bin"))
	if err := do(ctx, programs...); err != nil {
		return err
	}
	if err := do(ctx, append(append([]string{"install", "-m", "0644"}, at("test/busybox.tar")...), dir)...); err != nil {
		return err
	}
	if err := makeImage(ctx, h.treeFile(), "1G", dir); err != nil {
		return err
	}
	for _, v := range h.chosen {
		if v.byName {
			var err error
			if h.join, err = newJoinHost(ctx, h, dir); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(dir)
}

// makeImage creates a sparse file with an ext4 file system that has the content of a directory.
func makeImage(ctx context.Context, file, size, dir string) error {
	if err := do(ctx, "truncate", "-s", size, file); err != nil {
		return err
	}
	return do(ctx, "mkfs.ext4", "-q", "-d", dir, file)
}

// machineFiles lists what the machine changes or writes: images, serial lines, and pipes of QEMU's monitor.
var machineFiles = []string{"root.ext4", "vmlinuz", "initrd", "share.ext4", "console.log", "progress", "heartbeat", "monitor.in", "monitor.out"}

// freshMachine creates the directory of a machine. Everything in it is the account's, which can change it from then on.
func (h *host) freshMachine(ctx context.Context) (string, error) {
	dir := filepath.Join(h.stage, "machine")
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil { //nolint:gosec // the account must have access
		return "", err
	}
	for _, name := range machineFiles {
		path := filepath.Join(dir, name)
		var err error
		switch {
		case name == "share.ext4":
			err = h.shareImage(ctx, path)
		case strings.HasPrefix(name, "monitor."):
			err = do(ctx, "mkfifo", path)
		case name == "console.log" || name == "progress" || name == "heartbeat":
			err = os.WriteFile(path, nil, 0o600)
		default:
			err = do(ctx, "cp", "--sparse=always", filepath.Join(h.base, name), path)
		}
		if err = errors.Join(err, h.own(path)); err != nil {
			return "", err
		}
	}
	return dir, h.own(dir)
}

// shareImage creates the image with the input of the machine, to which the machine writes its results.
func (h *host) shareImage(ctx context.Context, file string) error {
	dir := filepath.Join(h.stage, "share")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if err := do(ctx, "cp", program, filepath.Join(dir, "vm")); err != nil {
		return err
	}
	var names strings.Builder
	for _, v := range h.chosen {
		names.WriteString(v.name + "\n")
	}
	for name, text := range map[string]string{"wanted": names.String(), patienceFile: environment(envPatience, "1")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if h.join != nil {
		if err := do(ctx, "cp", h.join.key+".pub", filepath.Join(dir, "key.pub")); err != nil {
			return err
		}
	}
	return makeImage(ctx, file, "256M", dir)
}
