# Everything is in the two commands of the README: `make up` and `make test`. The rest are their parts.
# Build output goes to _out/, which git ignores.

OUT        ?= _out
PREFIX     ?= /usr/local
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo v0.0.0-dev)
GO         ?= go
GOFLAGS_X   = -trimpath -ldflags "-s -w -X github.com/rootlessnode/rootlessnode/pkg/node.Version=$(VERSION)"
# The main executable starts without the gvisor-tap-vsock driver, which has one of its own (pkg/parent/drivers.go).
LEAN        = -tags no_gvisortapvsock
# Static: the same file must run on the host and, as the OCI runtime, inside.
export CGO_ENABLED ?= 0

.PHONY: help up down build components crictl test test-unit test-e2e test-vm conformance fuzz lint bench bench-scale install uninstall clean

help: ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | sort | expand -t 14

up: ## set up what is missing, build, start a node, show it
	@hack/up.sh

down: ## stop the node that `make up` started
	@hack/down.sh

build: ## build rootlessnode and its helper programs
	@mkdir -p $(OUT)/bin $(OUT)/libexec/rootlessnode
	$(GO) build $(GOFLAGS_X) $(LEAN) -o $(OUT)/bin/rootlessnode ./cmd/rootlessnode
	$(GO) build $(GOFLAGS_X) -o $(OUT)/libexec/rootlessnode/rootlessnode-gvisor ./cmd/rootlessnode
	$(GO) build $(GOFLAGS_X) -o $(OUT)/libexec/rootlessnode/rootlessnode-runc ./cmd/rootlessnode-runc
	$(GO) build $(GOFLAGS_X) -o $(OUT)/libexec/rootlessnode/rootlessnode-podstop ./cmd/rootlessnode-podstop

components: ## build Kubernetes, containerd, runc, etcd, flannel, CNI plugins and the images, as far as they changed
	@components/build.sh --out $(OUT)

crictl: ## build crictl, for looking at the container runtime by hand
	@components/build.sh --out $(OUT) cri-tools

test: ## set up what is missing, build, run every test
	@hack/test.sh

test-unit: ## run the tests that need neither root nor components
	@hack/test.sh unit

test-e2e: ## run the end-to-end tests with real components
	@hack/test.sh e2e

test-vm: ## run the tests that want a machine with systemd and delegated controllers, in a virtual one (root; VERDICTS=)
	@hack/vm.sh $(VERDICTS)

conformance: ## hold the node of `make up` against Kubernetes' own end-to-end suite (SET=, FOCUS=, PROCS=, RECORD=1)
	@hack/conformance.sh

fuzz: ## run every fuzz target for a while (FUZZTIME=10s each, FUZZPROCS=, TARGETS=a regular expression)
	@hack/fuzz.sh $(TARGETS)

lint: ## vet, format and lint
	@hack/lint.sh

bench: ## compare with a bare script under RootlessKit's command line, and with nsenter
	@hack/bench.sh

bench-scale: ## measure what nodes cost one another and the API server, in clusters of 1, 3 and 10 (root)
	@hack/scale.sh

install: build components ## install below PREFIX
	@hack/install.sh $(OUT) $(DESTDIR)$(PREFIX)

uninstall: ## remove what install put below PREFIX
	@hack/install.sh --remove $(DESTDIR)$(PREFIX)

clean: ## remove build output
	rm -rf $(OUT)
