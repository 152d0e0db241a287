package images

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

const (
	registry = "registry.k8s.io/e2e-test-images/"
	// nginxConfig serves one page on port 80, and logs to standard output and standard error.
	nginxConfig = `user www-data;
error_log /dev/stderr;
pid /run/nginx.pid;
events {}
http {
  include /etc/nginx/mime.types;
  access_log /dev/stdout;
  server { listen 80 default_server; root /usr/share/nginx/html; }
}
`
	nginxPage = "<!DOCTYPE html>\n<html><head><title>Welcome to nginx!</title></head><body><h1>Welcome to nginx!</h1></body></html>\n"
)

// image is a test image: its names in specs, and its content.
type image struct {
	names []string
	// root is the base layer: debian, busybox or none.
	root string
	// add adds the image's own layer to a tree; programs is the directory of the suite's programs.
	add        func(t tree, programs string) error
	user       string
	entrypoint []string
	cmd        []string
	env        []string
	ports      []string
}

// Roots of images.
const (
	debian  = "debian"
	busybox = "busybox"
	none    = ""
)

// Reasons why an image is not built.
const (
	outside  = "it needs an external registry"
	noVolume = "its server needs the kernel of the host, and no spec of the sets runs it"
	noCSI    = "a CSI side-car: no spec of the sets runs it"
	noNode   = "it is for the node e2e suite, not for the cluster e2e suite"
)

// notMade lists images of the suite that are not built, with the reason.
var notMade = map[string]string{
	"gcr.io/k8s-authenticated-test/agnhost":                                     outside,
	"invalid.registry.k8s.io/invalid/alpine":                                    outside,
	registry + "apparmor-loader":                                                "it loads profiles into the host's kernel, and no spec of the sets runs it",
	registry + "node-perf/npb-ep":                                               noNode,
	registry + "node-perf/npb-is":                                               noNode,
	registry + "node-perf/pytorch-wide-deep":                                    noNode,
	registry + "sample-device-plugin":                                           noNode,
	registry + "volume/iscsi":                                                   noVolume,
	registry + "volume/nfs":                                                     noVolume,
	"registry.k8s.io/cloud-provider-gcp/gcp-compute-persistent-disk-csi-driver": noCSI,
	"registry.k8s.io/pause":                                                     "the node provides it",
	"registry.k8s.io/sig-storage/csi-attacher":                                  noCSI,
	"registry.k8s.io/sig-storage/csi-external-health-monitor-controller":        noCSI,
	"registry.k8s.io/sig-storage/csi-node-driver-registrar":                     noCSI,
	"registry.k8s.io/sig-storage/csi-provisioner":                               noCSI,
	"registry.k8s.io/sig-storage/csi-resizer":                                   noCSI,
	"registry.k8s.io/sig-storage/csi-snapshot-metadata":                         noCSI,
	"registry.k8s.io/sig-storage/csi-snapshotter":                               noCSI,
	"registry.k8s.io/sig-storage/hello-populator":                               noCSI,
	"registry.k8s.io/sig-storage/hostpathplugin":                                noCSI,
	"registry.k8s.io/sig-storage/livenessprobe":                                 noCSI,
	"registry.k8s.io/sig-storage/nfs-provisioner":                               noVolume,
	"registry.k8s.io/sig-storage/volume-data-source-validator":                  noCSI,
}

// Check returns an error for images of the suite that are neither built nor listed as not built, so that a newer suite does not miss images.
func Check(wanted []string) error {
	made := map[string]bool{}
	for _, i := range catalog() {
		for _, n := range i.names {
			made[n] = true
		}
	}
	var errs []error
	for _, image := range wanted {
		repository := image[:max(strings.LastIndexByte(image, ':'), 0)]
		if _, known := notMade[repository]; !known && !made[image] {
			errs = append(errs, fmt.Errorf("the suite uses image %s, which is neither in the catalog nor listed as not built", image))
		}
	}
	return errors.Join(errs...)
}

// catalog lists the images that are built.
func catalog() []image {
	program := func(name string) func(tree, string) error {
		return func(t tree, programs string) error {
			return t.file("/"+name, 0o755, filepath.Join(programs, name))
		}
	}
	return []image{
		{
			names: []string{registry + "agnhost:2.66.1", registry + "agnhost:2.55"}, root: debian, add: addAgnhost,
			entrypoint: []string{"/agnhost"}, cmd: []string{"pause"},
			ports: []string{"80/tcp", "8080/tcp", "8081/tcp", "9376/tcp", "5000/tcp"},
		},
		{
			names: []string{registry + "busybox:1.37.0-2", registry + "busybox:1.36.1-1"}, root: busybox, cmd: []string{"sh"},
		},
		{names: []string{registry + "nonroot:1.5"}, root: debian, user: "1234", cmd: []string{"bash"}},
		{
			names: []string{registry + "nonewprivs:1.4"}, root: debian, cmd: []string{"nnp"},
			add: func(t tree, programs string) error {
				// The program shows whether set-uid and set-gid have an effect.
				return t.file("/usr/local/bin/nnp", 0o6755, filepath.Join(programs, "nonewprivs"))
			},
		},
		{
			names: []string{registry + "nginx:1.27.0-2", registry + "nginx:1.28.0-2"}, root: debian,
			cmd: []string{"nginx", "-g", "daemon off;"}, ports: []string{"80/tcp"},
			add: func(t tree, _ string) error {
				t.text("/etc/nginx/nginx.conf", nginxConfig)
				t.text("/usr/share/nginx/html/index.html", nginxPage)
				t.dir("/var/lib/nginx", 0o755)
				t.link("/var/log/nginx/access.log", "/dev/stdout")
				t.link("/var/log/nginx/error.log", "/dev/stderr")
				return nil
			},
		},
		{names: []string{registry + "perl:5.26"}, root: debian, cmd: []string{"perl", "-de0"}},
		{names: []string{registry + "ipc-utils:1.4"}, root: debian, cmd: []string{"sh"}},
		{
			names: []string{registry + "glibc-dns-testing:2.1.1"}, root: debian, add: program("coredns"), cmd: []string{"bash"},
		},
		{names: []string{"registry.k8s.io/build-image/distroless-iptables:v0.9.9"}, root: debian, cmd: []string{"bash"}},
		{
			names: []string{registry + "resource-consumer:1.14"}, root: debian, entrypoint: []string{"/consumer"},
			ports: []string{"8080/tcp"},
			add: func(t tree, programs string) error {
				if err := t.file("/consumer", 0o755, filepath.Join(programs, "resource-consumer")); err != nil {
					return err
				}
				return t.file("/consume-cpu", 0o755, filepath.Join(programs, "consume-cpu"))
			},
		},
		{
			names: []string{registry + "regression-issue-74839:1.5"}, root: debian, add: program("regression-issue-74839"),
			entrypoint: []string{"/regression-issue-74839"},
		},
		{
			names: []string{registry + "sample-apiserver:1.29.2"}, root: none, add: program("sample-apiserver"),
			entrypoint: []string{"/sample-apiserver"},
		},
		{
			names: []string{registry + "kitten:1.8"}, root: debian, entrypoint: []string{"/agnhost"}, cmd: []string{"test-webserver"},
			add: webserver("kitten.jpg"),
		},
		{
			names: []string{registry + "nautilus:1.8"}, root: debian, entrypoint: []string{"/agnhost"}, cmd: []string{"test-webserver"},
			add: webserver("nautilus.jpg"),
		},
		{
			names: []string{"registry.k8s.io/etcd:3.7.0-0"}, root: none, entrypoint: []string{"/usr/local/bin/etcd"},
			env: []string{"PATH=/usr/local/bin"},
			add: func(t tree, programs string) error {
				return t.file("/usr/local/bin/etcd", 0o755, filepath.Join(programs, "etcd"))
			},
		},
	}
}

// addAgnhost adds the files of the Dockerfile of agnhost. The certificates and keys are not in this source tree, but copied from the
// Kubernetes module to programs.
func addAgnhost(t tree, programs string) error {
	for _, name := range []string{"agnhost", "coredns"} {
		if err := t.file("/"+name, 0o755, filepath.Join(programs, name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"localhost.crt", "localhost.key"} {
		if err := t.file("/"+name, 0o644, filepath.Join(programs, name)); err != nil {
			return err
		}
	}
	t.dir("/uploads", 0o755)
	t.link("/agnhost-2", "agnhost")
	t.link("/usr/local/bin/iperf", "/usr/bin/iperf")
	return addFakeRegistry(t, filepath.Join(programs, "pause.tar"))
}

func webserver(image string) func(tree, string) error {
	return func(t tree, programs string) error {
		t.text("/data.json", fmt.Sprintf("{\"image\": %q}\n", image))
		return t.file("/agnhost", 0o755, filepath.Join(programs, "agnhost"))
	}
}
