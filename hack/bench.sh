#!/usr/bin/env bash
# `make bench`: runs benchmarks against a plain script with the rootlesskit command, and against nsenter(1). As root it uses the
# account of the tests, which `rootlessnode host setup` prepares. As an ordinary user it uses that user, whose account must be
# prepared already. The table goes to standard output, the samples to _out/bench/*.json. See docs/benchmarks.md.
#
#   hack/bench.sh [FLAG…]      flags of test/bench, for example -pairs 10 or -parts exec,memory
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

bench_account=${ROOTLESSNODE_TEST_ACCOUNT:-rootlessnode-test}

# same_rootlesskit: checks that the rootlesskit command has the version of the library that rootlessnode uses.
same_rootlesskit() {
	local module=github.com/rootless-containers/rootlesskit/v3 library peer
	library=$(go list -m -f '{{.Version}}' $module)
	peer=$(go -C test/bench/rootlesskit list -m -f '{{.Version}}' $module)
	[ "$library" = "$peer" ] || die 1 "test/bench/rootlesskit has $peer, the library has $library" \
		"go -C test/bench/rootlesskit get -tool $module/cmd/rootlesskit@$library && go -C test/bench/rootlesskit mod tidy"
}

# programs DIR: builds the benchmark programs and the programs that they compare with rootlessnode.
programs() {
	local flags=(-trimpath -ldflags "-s -w")
	say "building the benchmark programs"
	CGO_ENABLED=0 go -C test/bench/rootlesskit build "${flags[@]}" -o "$1/rootlesskit" github.com/rootless-containers/rootlesskit/v3/cmd/rootlesskit
	CGO_ENABLED=0 go build "${flags[@]}" -o "$1/bench" ./test/bench
	CGO_ENABLED=0 go build "${flags[@]}" -o "$1/bench-empty" ./test/bench/empty
	# With the same tags as rootlessnode (Makefile, LEAN).
	CGO_ENABLED=0 go build "${flags[@]}" -tags no_gvisortapvsock -o "$1/bench-namespaces" ./test/bench/namespaces
	CGO_ENABLED=0 go build "${flags[@]}" -o "$1/bench-ports" ./test/bench/ports
	CGO_ENABLED=0 go build "${flags[@]}" -o "$1/bench-mounts" ./test/bench/mounts
	CGO_ENABLED=0 go build "${flags[@]}" -o "$1/bench-rollout" ./test/bench/rollout
	install -m 0755 test/bench/bare.sh "$1/bare.sh"
}

ensure_build "$run_needs curl:curl nsenter:util-linux ps:procps"
same_rootlesskit
make --no-print-directory build components
mkdir -p "$out/bench/bin"
programs "$out/bench/bin"

if [ "$(id -u)" != 0 ]; then
	exec "$out/bench/bin/bench" -rootlessnode "$out/bin/rootlessnode" -out "$out/bench" "$@"
fi

# The account works in a staging directory, because the clone may be in a directory that only root can read.
stage=$(mktemp -d "$(stage_place)/rootlessnode-bench.XXXXXX")
chmod 0755 "$stage"
trap 'rm -rf "$stage"' EXIT
hack/install.sh "$out" "$stage"
install -m 0755 "$out"/bench/bin/* "$stage/bin/"
"$stage/bin/rootlessnode" host setup --user "$bench_account" --create-user
install -d -o "$bench_account" "$stage/results"
failed=0
"$stage/bin/rootlessnode" host enter --user "$bench_account" --command -- \
	"$stage/bin/bench" -out "$stage/results" "$@" || failed=$?
collect "$bench_account" "$stage/results" "$out/bench" '*.json'
exit $failed
