#!/usr/bin/env bash
# `make test`: sets up the host and runs all tests. As root, it runs the end-to-end tests as a dedicated account, which
# `rootlessnode host setup` prepares. As an ordinary user, it runs them as that user, whose account must be prepared already.
#
#   hack/test.sh [all|unit|e2e|upgrade|engines]
#
# upgrade builds the older Kubernetes, too (KUBERNETES, by default 1.36), and runs only the test of an upgrade from it.
# engines runs only the test of container engines, which hack/engines.sh prepares (root only).
# ROOTLESSNODE_TEST_LXC=1 sets up LXC's bridge for the test of the network driver lxc-user-nic (root only).
# RUN is a regular expression that selects end-to-end tests. ROOTLESSNODE_E2E_LIMIT is the time limit of all of them.
# ROOTLESSNODE_TEST_PROMISES lists requirements that the machine must meet. A test that needs one of them fails instead of being
# skipped if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

what=${1:-all}
required=${ROOTLESSNODE_TEST_PROMISES:-}
# LXC's bridge is set up only on request, because it is a large change to the machine and only one test needs it.
lxc=
[ "$(id -u)" != 0 ] || lxc=${ROOTLESSNODE_TEST_LXC:-}
test_account=${ROOTLESSNODE_TEST_ACCOUNT:-rootlessnode-test}
e2e_limit=${ROOTLESSNODE_E2E_LIMIT:-40m}
unit_limit=15m

# required_without NAME...: prints ROOTLESSNODE_TEST_PROMISES without these names. Some requirements can be met only by root, others
# only by an ordinary user.
required_without() {
	local p out=
	for p in ${required//,/ }; do
		case " $* " in *" $p "*) ;; *) out=$out${out:+,}$p ;; esac
	done
	printf %s "$out"
}

# Build without cgo, as in releases, except for tests with the race detector.
export CGO_ENABLED=0
race() { CGO_ENABLED=1 go test -race -timeout "$unit_limit" "$@"; }

unit() {
	say "unit tests, with the race detector"
	if [ "$(id -u)" = 0 ]; then
		ROOTLESSNODE_TEST_PROMISES=$(required_without user subids delegated-cgroup e2e-build conformance-suite) race ./...
	else
		ROOTLESSNODE_TEST_PROMISES=$(required_without root e2e-build conformance-suite) race ./...
	fi
	say "unit tests of the components"
	components/test.sh
	say "unit tests of the conformance driver"
	(cd test/conformance && GOWORK=off go vet ./... && GOWORK=off race ./...)
	if [ "$(id -u)" = 0 ]; then
		say "unit tests again, as an ordinary user"
		unit_as_user
	fi
}

# prepare_account: prepares the account that runs the tests, and installs the program in a directory that it can read.
prepare_account() {
	make --no-print-directory build
	install -D -m 0755 "$out/bin/rootlessnode" "$stage/bin/rootlessnode"
	"$stage/bin/rootlessnode" host setup --user "$test_account" --create-user
	[ -z "$lxc" ] || "$stage/bin/rootlessnode" host setup --user "$test_account" --lxc-user-nic ||
		say "bridge not set up: the network driver lxc-user-nic is not tested"
}

# as_account CMD...: runs a command as the test account, in its delegated cgroup.
as_account() {
	"$stage/bin/rootlessnode" host enter --user "$test_account" --command -- "$@"
}

# packages_with_requirements: prints the directories of the packages whose tests call testutil.Require.
packages_with_requirements() {
	git grep --untracked -l 'testutil\.Require(' -- 'cmd/*_test.go' 'config/*_test.go' 'internal/*_test.go' 'pkg/*_test.go' |
		xargs -rn 1 dirname | sort -u
}

# unit_as_user: runs the tests of the packages with requirements, because their result may depend on the user. root builds the test
# binaries, because it has the build cache. The account runs them in copies of their directories, which contain the test data.
unit_as_user() {
	prepare_account
	local pkg name failed=0 packages
	packages=$(packages_with_requirements)
	[ -n "$packages" ] || die 1 "no tests call testutil.Require"
	mkdir -p "$stage/unit"
	# shellcheck disable=SC2046,SC2086 # a list of packages
	CGO_ENABLED=1 go test -race -c -o "$stage/unit/" $(printf './%s ' $packages)
	for pkg in $packages; do
		cp -r "$pkg" "$stage/unit/"
	done
	cp -r docs "$stage/" # some tests compare pages
	chmod -R go+rX "$stage/unit" "$stage/docs"
	for pkg in $packages; do
		name=${pkg##*/}
		say "$pkg"
		as_account env "ROOTLESSNODE_TEST_PROMISES=$(required_without root e2e-build conformance-suite)" \
			sh -c "cd $stage/unit/$name && exec ../$name.test -test.timeout=$unit_limit" || failed=1
	done
	return $failed
}

# more_ids ACCOUNT: gives an account enough subordinate ids for a container in which another account has 65536.
more_ids() {
	local first
	[ "$(grep -c "^$1:" /etc/subuid)" = 1 ] || return 0
	first=$(cat /etc/subuid /etc/subgid | awk -F: '$2 + $3 > max { max = $2 + $3 } END { print max }')
	usermod --add-subuids "$first-$((first + 199999))" --add-subgids "$first-$((first + 199999))" "$1"
}

e2e() {
	say "end-to-end tests with real components"
	make --no-print-directory build components
	e2e_programs
	local image=$out/test/busybox.tar
	local suite=${XDG_CACHE_HOME:-$HOME/.cache}/rootlessnode/conformance
	say "Kubernetes' own end-to-end suite and its images"
	hack/conformance.sh build "$suite"
	local run=(env "ROOTLESSNODE_TEST_PROMISES=$(required_without root)"
		"ROOTLESSNODE_E2E_ROUNDS=${ROOTLESSNODE_E2E_ROUNDS:-}" "ROOTLESSNODE_E2E_SOAK=${ROOTLESSNODE_E2E_SOAK:-}"
		"ROOTLESSNODE_E2E_CERTIFICATES=${ROOTLESSNODE_E2E_CERTIFICATES:-}" "ROOTLESSNODE_RECOVERY_ROUNDS=${ROOTLESSNODE_RECOVERY_ROUNDS:-}"
		"ROOTLESSNODE_E2E_UPGRADE=${ROOTLESSNODE_E2E_UPGRADE:-}")
	if [ "$(id -u)" != 0 ]; then
		"${run[@]}" "ROOTLESSNODE_E2E_OUT=$out" "ROOTLESSNODE_E2E_IMAGE=$image" "ROOTLESSNODE_E2E_SUITE=$suite" \
			"$out/bin/e2e.test" -test.v -test.timeout="$e2e_limit" -test.parallel=2 -test.run="${RUN:-.}"
		return
	fi
	prepare_account
	hack/install.sh "$out" "$stage"
	install -m 0755 "$out/bin/embed" "$out/bin/e2e.test" "$stage/bin/"
	install -m 0644 "$image" "$stage/busybox.tar"
	stage_suite "$suite" "$stage/suite"
	# The account works in the staging directory, because the clone may be in a directory that only root can read.
	as_account "${run[@]}" "ROOTLESSNODE_E2E_OUT=$stage" "ROOTLESSNODE_E2E_IMAGE=$stage/busybox.tar" \
		"ROOTLESSNODE_E2E_SUITE=$stage/suite" \
		"$stage/bin/e2e.test" -test.v -test.timeout="$e2e_limit" -test.parallel=2 -test.run="${RUN:-.}"
	# Run the tests that require root, because they change the host of the account's node, or create several hosts for nodes of several
	# accounts. testutil.Require skips all others.
	host_accounts "$stage/bin/rootlessnode" "$test_account"
	[ "$what" != engines ] || more_ids "$test_account"
	env "ROOTLESSNODE_TEST_PROMISES=$(required_without user subids delegated-cgroup conformance-suite)" "ROOTLESSNODE_E2E_OUT=$stage" \
		"ROOTLESSNODE_E2E_IMAGE=$stage/busybox.tar" "ROOTLESSNODE_E2E_ACCOUNT=$test_account" "ROOTLESSNODE_E2E_ACCOUNTS=$accounts" \
		"$stage/bin/e2e.test" -test.v -test.timeout="$e2e_limit" -test.run="${RUN:-.}"
}

needs="$run_needs $e2e_needs ps:procps pasta:passt systemd-socket-activate:systemd"
[ -z "$lxc" ] || needs="$needs /usr/libexec/lxc/lxc-user-nic:lxc dnsmasq:dnsmasq-base"
ensure_build "$needs"
stage=$(mktemp -d "$(stage_place)/rootlessnode-test.XXXXXX")
chmod 0755 "$stage"
trap 'rm -rf "$stage"' EXIT

case $what in
unit) unit ;;
e2e) e2e ;;
upgrade)
	export ROOTLESSNODE_E2E_UPGRADE=${KUBERNETES:-1.36} RUN='TestUpgrade$'
	make --no-print-directory components KUBERNETES="$ROOTLESSNODE_E2E_UPGRADE"
	unset KUBERNETES # the rest of the build is that of the other tests
	e2e
	;;
engines)
	[ "$(id -u)" = 0 ] || die 2 "the test of container engines needs root"
	export ROOTLESSNODE_E2E_ENGINES=${XDG_CACHE_HOME:-$HOME/.cache}/rootlessnode/engines RUN='TestEngines$'
	hack/engines.sh "$ROOTLESSNODE_E2E_ENGINES"
	e2e
	;;
all)
	unit
	e2e
	;;
*) die 2 "unknown part of the tests: $what" "hack/test.sh [all|unit|e2e|upgrade|engines]" ;;
esac
say "all tests passed"
