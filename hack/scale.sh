#!/usr/bin/env bash
# `make bench-scale`: measures clusters of 1, 3 and 10 nodes on hosts that are network namespaces, then a cluster with 100 Node
# objects, most of which have no real node. It needs root, like TestJoin, and takes about 15 minutes and 3 GB of memory. The table
# goes to standard output and to _out/scale.md. See docs/scaling.md.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

test_account=${ROOTLESSNODE_TEST_ACCOUNT:-rootlessnode-test}
limit=40m

[ "$(id -u)" = 0 ] || die $exit_preflight "hosts that are network namespaces need root" "sudo make bench-scale"
ensure_build "$run_needs $e2e_needs bridge:iproute2 nsenter:util-linux"
make --no-print-directory build components
e2e_programs

# The accounts work in a staging directory, because the clone may be in a directory that only root can read.
stage=$(mktemp -d "$(stage_place)/rootlessnode-scale.XXXXXX")
chmod 0755 "$stage"
trap 'rm -rf "$stage"' EXIT
hack/install.sh "$out" "$stage"
install -m 0755 "$out/bin/e2e.test" "$stage/bin/"
"$stage/bin/rootlessnode" host setup --user "$test_account" --create-user
host_accounts "$stage/bin/rootlessnode" "$test_account"
env ROOTLESSNODE_TEST_PROMISES=scale,root,e2e-build,e2e-account,program:ip,program:nsenter,program:bridge \
	"ROOTLESSNODE_E2E_SCALE=$out/scale.md" "ROOTLESSNODE_E2E_OUT=$stage" "ROOTLESSNODE_E2E_ACCOUNT=$test_account" \
	"ROOTLESSNODE_E2E_ACCOUNTS=$accounts" "$stage/bin/e2e.test" -test.v -test.timeout="$limit" -test.run='^TestScale$'
cat "$out/scale.md"
