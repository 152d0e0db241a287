#!/usr/bin/env bash
# `make conformance`: runs the Kubernetes end-to-end suite on the node that `make up` started. It builds the suite and its images.
# As root it uses the node of the dedicated account, and the suite runs as that account.
#
#   hack/conformance.sh        with SET (all), FOCUS (a regular expression), PROCS and NAME (default) from the environment
#   hack/conformance.sh build DIR    only builds, into DIR
#
# test/conformance/expectations.yaml lists the specs that do not pass. test/conformance/recorded/ contains the results of the last
# recorded run. RECORD=1 records this run.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

cache=${XDG_CACHE_HOME:-$HOME/.cache}/rootlessnode/conformance

# build DIR: builds the driver, the suite and the images.
build() {
	ensure_build "apt-get:apt dpkg-deb:dpkg"
	# The images are created from packages. A fresh machine may not have the package lists.
	if ! apt-cache show busybox-static >/dev/null 2>&1; then
		[ "$(id -u)" = 0 ] || die $exit_preflight "apt has no package lists" "sudo apt-get update"
		apt-get update -qq
	fi
	components/build.sh --out "$out"
	mkdir -p "$1"
	CGO_ENABLED=0 go -C test/conformance build -trimpath -o "$1/conformance" .
	"$1/conformance" build -dir "$1" -pause "$out/share/rootlessnode/images/pause.tar"
	rm -rf "$1/recorded"
	cp -r test/conformance/expectations.yaml test/conformance/recorded "$1/"
}

if [ "${1:-}" = build ]; then
	build "${2:?directory}"
	exit
fi

name=${NAME:-default}
build "$cache"
if [ "$(id -u)" = 0 ]; then
	# Copy the files for the account, because the cache and the clone may be in directories that only root can read.
	rootlessnode=/usr/local/bin/rootlessnode
	[ -x "$rootlessnode" ] || die 1 "no node is installed for the account $account" "make up"
	as=("$rootlessnode" host enter --user "$account" --command --)
	stage=$(mktemp -d /var/tmp/rootlessnode-conformance.XXXXXX)
	trap 'rm -rf "$stage"' EXIT
	stage_suite "$cache" "$stage"
	install -d -o "$account" "$stage/out"
	kubectl=/usr/local/libexec/rootlessnode/kubectl
else
	rootlessnode=$out/bin/rootlessnode
	as=(env)
	stage=$cache
	kubectl=$out/libexec/rootlessnode/kubectl
	mkdir -p "$stage/out"
fi
"${as[@]}" "$rootlessnode" --name "$name" status >/dev/null || die 1 "node $name is not running" "make up"

args=(-dir "$stage" -out "$stage/out" -rootlessnode "$rootlessnode" -kubectl "$kubectl" -name "$name" -set "${SET:-all}"
	-expectations "$stage/expectations.yaml" -records "$stage/recorded")
[ -z "${FOCUS:-}" ] || args+=(-focus "$FOCUS")
[ -z "${PROCS:-}" ] || args+=(-procs "$PROCS")

code=0
"${as[@]}" "$stage/conformance" run "${args[@]}" || code=$?
rm -rf "$out/conformance"
mkdir -p "$out/conformance"
if [ "$(id -u)" = 0 ]; then
	collect "$account" "$stage/out" "$out/conformance"
else
	cp "$stage"/out/* "$out/conformance/" 2>/dev/null || true
fi
say "summary, JUnit, record and logs: $out/conformance"
if [ -n "${RECORD:-}" ]; then
	# Machines with and without delegation have different records.
	for record in hybrid.txt delegated.txt; do
		[ -e "$out/conformance/$record" ] || continue
		cp "$out/conformance/$record" test/conformance/recorded/
		say "recorded in test/conformance/recorded/$record"
	done
fi
exit "$code"
