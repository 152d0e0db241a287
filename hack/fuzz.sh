#!/usr/bin/env bash
# `make fuzz`: runs all fuzz targets of the repository one after another, each for a limited time. It fails if a target finds a failing
# input, which Go saves below testdata/fuzz of the package, or if a target ran too few times.
#
#   hack/fuzz.sh [REGEXP]      only the targets whose package and name, as in internal/supervisor.FuzzTail, match it
#
# FUZZTIME (default 10s, or a number of runs such as 1000x) applies to each target. FUZZPROCS (default: all processors) is the number of
# parallel processes.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

time=${FUZZTIME:-10s}
procs=${FUZZPROCS:-$(nproc)}
wanted=${1:-.}
# A target must run at least this often. Minimizing is limited, because otherwise Go spends all of the time on large seeds.
least=100
minimize=200x

# targets DIR: prints the fuzz targets of the module in DIR, each as "PACKAGE NAME".
targets() {
	local packages
	packages=$(cd "$1" && git grep -l --untracked '^func Fuzz' -- '*_test.go' | while read -r file; do
		[ "$(module_of "$1/$file")" != "$1" ] || dirname "./$file"
	done | sort -u) || true
	[ -n "$packages" ] || return 0
	# shellcheck disable=SC2086 # a list of packages
	(cd "$1" && GOWORK=off go test -vet=off -list '^Fuzz' $packages) | awk '
		/^Fuzz/ { names[n++] = $1 }
		$1 == "ok" { for (i = 0; i < n; i++) print $2, names[i]; n = 0 }'
}

# module_of FILE: prints the directory of the module that a file belongs to.
module_of() {
	local dir
	dir=$(dirname "$1")
	until [ -e "$dir/go.mod" ]; do dir=$(dirname "$dir"); done
	printf '%s\n' "$dir"
}

# fuzz DIR PACKAGE NAME: runs one target. Its output is shown if it fails.
fuzz() {
	local log=$logs/log code=0 runs
	(cd "$1" && GOWORK=off go test -vet=off -run '^$' -fuzz "^$3\$" -fuzztime "$time" -fuzzminimizetime "$minimize" -parallel "$procs" "$2") \
		>"$log" 2>&1 || code=$?
	runs=$(sed -n 's/^fuzz: elapsed: .*, execs: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
	if [ "$code" != 0 ]; then
		cat "$log"
		say "$2.$3: FAILED"
		return 1
	fi
	case $time in
	*x) ;;
	*)
		if [ "${runs:-0}" -lt "$least" ]; then
			cat "$log"
			say "$2.$3: FAILED: ran ${runs:-0} times in $time, which is less than $least"
			return 1
		fi
		;;
	esac
	say "$2.$3: ran ${runs:-0} times"
}

ensure_build
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failed=() count=0
for module in $(git ls-files '*go.mod' | xargs -n 1 dirname); do
	dir=$(cd "$module" && pwd)
	list=$(targets "$dir")
	while read -r package name; do
		[ -n "$package" ] || continue # an empty list is one empty line
		[[ "$package.$name" =~ $wanted ]] || continue
		count=$((count + 1))
		fuzz "$dir" "$package" "$name" </dev/null || failed+=("$package.$name")
	done <<<"$list"
done
[ "$count" != 0 ] || die 2 "no fuzz target matches $wanted"
[ "${#failed[@]}" = 0 ] || die 1 "${#failed[@]} of $count fuzz targets failed: ${failed[*]}" \
	"reproduce with the new file below testdata/fuzz of the package: go test ./PACKAGE; commit the file with the fix"
say "$count fuzz targets passed"
