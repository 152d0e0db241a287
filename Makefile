# The main targets are `make up` and `make test`, as in the README. Most others are parts of them.
# Build output is in _out/, which git ignores.

OUT        ?= _out
PREFIX     ?= /usr/local
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo v0.0.0-dev)
GO         ?= go
GOFLAGS_X   = -trimpath -ldflags "-s -w -X github.com/rootlessnode/rootlessnode/pkg/node.Version=$(VERSION)"
# The main executable does not contain the gvisor-tap-vsock driver. A separate executable does (pkg/parent/drivers.go).
LEAN        = -tags no_gvisortapvsock
# Static, because the same file runs on the host and, as the OCI runtime, inside the node.
export CGO_ENABLED ?= 0

.PHONY: help up down build components crictl test test-unit test-e2e test-stops test-vm conformance soak test-recovery test-upgrade test-engines test-certificates fuzz lint bench bench-scale install uninstall clean

help: ## show this help
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | sort | expand -t 14

up: ## set up the host, build, start a node and show its status
	@hack/up.sh

down: ## stop the node that `make up` started
	@hack/down.sh

build: ## build rootlessnode and its helper programs
	@mkdir -p $(OUT)/bin $(OUT)/libexec/rootlessnode
	$(GO) build $(GOFLAGS_X) $(LEAN) -o $(OUT)/bin/rootlessnode ./cmd/rootlessnode
	$(GO) build $(GOFLAGS_X) -o $(OUT)/libexec/rootlessnode/rootlessnode-gvisor ./cmd/rootlessnode
	$(GO) build $(GOFLAGS_X) -o $(OUT)/libexec/rootlessnode/rootlessnode-runc ./cmd/rootlessnode-runc
	$(GO) build $(GOFLAGS_X) -o $(OUT)/libexec/rootlessnode/rootlessnode-cri ./cmd/rootlessnode-cri

components: ## build Kubernetes, containerd, runc, etcd, flannel, CNI plugins and the images, if they changed (KUBERNETES=1.36: that Kubernetes)
	@components/build.sh --out $(OUT) $(KUBERNETES:%=kubernetes-%)

crictl: ## build crictl, to inspect the container runtime manually
	@components/build.sh --out $(OUT) cri-tools

test: ## set up the host, build and run all tests
	@hack/test.sh

test-unit: ## run the tests that need neither root nor components
	@hack/test.sh unit

test-e2e: ## run the end-to-end tests with real components
	@hack/test.sh e2e

test-vm: ## run the tests that need a machine with systemd and delegated controllers, in a virtual machine (root; VERDICTS=)
	@hack/vm.sh $(VERDICTS)

soak: ## do random harm to a node for a long time, and check that it recovers (SOAK=1h)
	@ROOTLESSNODE_E2E_SOAK=$(or $(SOAK),1h) ROOTLESSNODE_E2E_LIMIT=3h RUN='TestSoak$$' hack/test.sh e2e

test-stops: ## start and stop a node at the same time, at random moments and with failing parts, many times (ROUNDS=50)
	@ROOTLESSNODE_E2E_ROUNDS=$(or $(ROUNDS),50) RUN='^(TestTwoStartsAtOnce|TestDownDuringUp|TestComponentFails)$$' hack/test.sh e2e

test-recovery: ## start a node with copies of its data from random moments, as after power failures (ROUNDS=20)
	@ROOTLESSNODE_RECOVERY_ROUNDS=$(or $(ROUNDS),20) RUN='TestPowerLoss$$' hack/test.sh e2e

test-upgrade: ## upgrade a node from an older Kubernetes, and return (KUBERNETES=1.36)
	@hack/test.sh upgrade

test-engines: ## run the commands of docs/containers.md with Podman and Docker of Debian (root)
	@hack/test.sh engines

conformance: ## run the Kubernetes end-to-end suite on the node of `make up` (SET=, FOCUS=, PROCS=, RECORD=1)
	@hack/conformance.sh

test-certificates: ## run a node whose certificates live for ten minutes (LIFE=1h)
	@ROOTLESSNODE_E2E_CERTIFICATES=$(or $(LIFE),1h) ROOTLESSNODE_E2E_LIMIT=3h RUN='TestShortCertificates$$' hack/test.sh e2e

fuzz: ## run all fuzz targets for a limited time (FUZZTIME=10s for each, FUZZPROCS=, TARGETS=REGEXP)
	@hack/fuzz.sh $(TARGETS)

lint: ## check format, scripts and words, and run vet and the linters
	@hack/lint.sh

bench: ## run benchmarks against a plain script with the rootlesskit command, and against nsenter
	@hack/bench.sh

bench-scale: ## measure the cost of more nodes, in clusters of 1, 3 and 10 nodes (root)
	@hack/scale.sh

install: build components ## install below PREFIX
	@hack/install.sh $(OUT) $(DESTDIR)$(PREFIX)

uninstall: ## remove the installed files below PREFIX
	@hack/install.sh --remove $(DESTDIR)$(PREFIX)

clean: ## remove build output
	rm -rf $(OUT)
