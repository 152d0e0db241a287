#!/usr/bin/env bash
# `make bench`: compares with a bare script under RootlessKit's command line, and with nsenter(1). As root it runs as the
# account of the tests, which `rootlessnode host setup` prepares; as an ordinary user as that user, who must have been
# prepared. The table goes to standard output, the samples to _out/bench/*.json. See docs/benchmarks.md.
#
#   hack/bench.sh [FLAG…]      flags of test/bench, for example -pairs 10 or -parts exec,memory
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

bench_account=${ROOTLESSNODE_TEST_ACCOUNT:-rootlessnode-test}

# same_rootlesskit: the peer must be the RootlessKit that we have as a library.
same_rootlesskit() {
	local module=github.com/rootless-containers/rootlesskit/v3 ours peer
	ours=$(go list -m -f '{{.Version}}' $module)
	peer=$(go -C test/bench/rootlesskit list -m -f '{{.Version}}' $module)
	[ "$ours" = "$peer" ] || die 1 "test/bench/rootlesskit has $peer, the library is $ours" \
		"go -C test/bench/rootlesskit get -tool $module/cmd/rootlesskit@$ours && go -C test/bench/rootlesskit mod tidy"
}

# programs DIR: what is measured beside rootlessnode, and what measures.
programs() {
	local flags=(-trimpath -ldflags "-s -w")
	say "building what measures"
	CGO_ENABLED=0 go -C test/bench/rootlesskit build "${flags[@]}" -o "$1/rootlesskit" github.com/rootless-containers/rootlesskit/v3/cmd/rootlesskit
	CGO_ENABLED=0 go build "${flags[@]}" -o "$1/bench" ./test/bench
	CGO_ENABLED=0 go build "${flags[@]}" -o "$1/bench-empty" ./test/bench/empty
	# As rootlessnode itself is built (Makefile, LEAN).
	CGO_ENABLED=0 go build "${flags[@]}" -tags no_gvisortapvsock -o "$1/bench-namespaces" ./test/bench/namespaces
	CGO_ENABLED=0 go build "${flags[@]}" -o "$1/bench-ports" ./test/bench/ports
	CGO_ENABLED=0 go build "${flags[@]}" -o "$1/bench-mounts" ./test/bench/mounts
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

# The clone may lie where only root can read, so the account works in a stage.
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
