package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// debianPackages are the packages of programs that specs or other programs run.
var debianPackages = []string{
	"base-files", "base-passwd", "bash", "bind9-dnsutils", "bsdutils", "coreutils", "curl", "dash", "debianutils", "findutils",
	"gawk", "grep", "hostname", "iperf", "iproute2", "iptables", "libc-bin", "mount", "netcat-openbsd", "nginx-light", "perl-base",
	"procps", "sed", "socat", "stress", "tar", "util-linux",
}

// fetchPackages downloads packages with their dependencies, with the host's apt configuration, and returns the files. It needs no
// privileges, because apt uses dir for its locks, its archive and an empty list of installed packages.
func fetchPackages(ctx context.Context, dir string, packages ...string) ([]string, error) {
	archives := filepath.Join(dir, "archives")
	if err := os.MkdirAll(filepath.Join(archives, "partial"), 0o755); err != nil {
		return nil, err
	}
	status := filepath.Join(dir, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, err
	}
	args := []string{
		"-o", "Dir::State::status=" + status, "-o", "Debug::NoLocking=1", "-o", "Dir::Cache=" + filepath.Join(dir, "cache"),
		"-o", "Dir::Cache::archives=" + archives, "-o", "APT::Install-Recommends=0", "-o", "APT::Sandbox::User=",
		"-qq", "--yes", "--download-only", "install",
	}
	cmd := exec.CommandContext(ctx, "apt-get", append(args, packages...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("download Debian packages %v: %w\n%s(the host must be a Debian system with package lists; run: apt-get update)",
			packages, err, out)
	}
	files, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("download Debian packages %v: apt-get wrote no file", packages)
	}
	slices.Sort(files)
	return files, err
}

// unpack adds the content of a package. Its scripts do not run; debianRoot makes the necessary changes of them.
func (t tree) unpack(ctx context.Context, deb string) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	read := t.archive(out)
	if err := errors.Join(read, cmd.Wait()); err != nil {
		return fmt.Errorf("unpack %s: %w %s", filepath.Base(deb), err, stderr.Bytes())
	}
	return nil
}

// debianRoot builds the root of most of the test images.
func debianRoot(ctx context.Context, dir string) (tree, error) {
	debs, err := fetchPackages(ctx, dir, debianPackages...)
	if err != nil {
		return nil, err
	}
	t := newRoot()
	for _, deb := range debs {
		if err := t.unpack(ctx, deb); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"passwd", "group"} {
		master, ok := t["usr/share/base-passwd/"+name+".master"]
		if !ok {
			return nil, fmt.Errorf("Debian root: no master file of /etc/%s", name)
		}
		// A spec about groups in the image checks this user and its group.
		line := "user-defined-in-image:x:1000:1000:::/bin/sh\n"
		if name == "group" {
			line = "user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"
		}
		t.text("/etc/"+name, string(master.data)+line)
	}
	t.text("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n")
	// Links that the packages' scripts would create.
	t.link("/usr/bin/nc", "nc.openbsd")
	t.link("/usr/bin/awk", "gawk")
	t.link("/usr/sbin/iptables", "iptables-nft")
	t.link("/usr/sbin/ip6tables", "ip6tables-nft")
	if _, ok := t["usr/bin/sh"]; !ok {
		t.link("/usr/bin/sh", "dash")
	}
	return t, nil
}

// busyboxRoot builds a root of Debian's static busybox with a link for each of its applets. Its shell removes variables with names that
// are invalid in a shell, such as "data-1", from the environment of its children, and some specs fail because of that. With another shell,
// specs would fail that expect messages of this one.
func busyboxRoot(ctx context.Context, dir string) (tree, error) {
	debs, err := fetchPackages(ctx, dir, "busybox-static")
	if err != nil {
		return nil, err
	}
	packaged := tree{}
	for _, deb := range debs {
		if err := packaged.unpack(ctx, deb); err != nil {
			return nil, err
		}
	}
	program, ok := packaged["usr/bin/busybox"]
	if !ok {
		return nil, errors.New("busybox root: the package has no /bin/busybox")
	}
	// It can run here to list its applets, because it is of this host's distribution and architecture.
	local := filepath.Join(dir, "busybox")
	if err := os.WriteFile(local, program.data, 0o755); err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, local, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list the applets of busybox: %w", err)
	}
	t := tree{}
	for _, name := range []string{"dev", "etc", "home", "proc", "root", "sys", "usr", "var"} {
		t.dir("/"+name, 0o755)
	}
	t.dir("/tmp", 0o1777)
	t.bytes("/bin/busybox", 0o755, program.data)
	for _, applet := range bytes.Fields(out) {
		if string(applet) != "busybox" {
			t.link("/bin/"+string(applet), "busybox")
		}
	}
	t.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n")
	t.text("/etc/group", "root:x:0:\nnogroup:x:65534:\n")
	return t, nil
}
