#!/usr/bin/env bash
# `make lint`: format, shell scripts, the word list, golangci-lint (with vet; built from its Go module, pinned in tools/go.mod), and known
# vulnerabilities if their database can be reached.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh
ensure_build

say "gofmt"
# All existing files, committed or not.
unformatted=$(git ls-files --cached --others --exclude-standard '*.go' | sort -u | while read -r f; do
	[ ! -e "$f" ] || printf '%s\n' "$f"
done | xargs gofmt -l)
[ -z "$unformatted" ] || die 1 "not formatted: $unformatted" "gofmt -w $unformatted"

say "shell scripts"
# Committed or not, without golden files of tests.
scripts=()
while read -r f; do
	[ -e "$f" ] || continue
	bash -n "$f"
	scripts+=("$f")
done < <(git ls-files --cached --others --exclude-standard .ci/run '*.sh' ':!*/testdata/*' | sort -u)
if [ "$(id -u)" = 0 ]; then
	ensure_packages shellcheck:shellcheck
fi
if command -v shellcheck >/dev/null 2>&1; then
	shellcheck --severity=info "${scripts[@]}"
else
	say "shellcheck is not installed: skipped"
fi

# Use the flags of the build, so that compiled packages are shared.
GOFLAGS="$(go env GOFLAGS) -trimpath" CGO_ENABLED=0
export GOFLAGS CGO_ENABLED

say "word list"
go run ./test/words || die 1 "words to avoid" "write what each finding says, or read the package comment of test/words"

say "imports, names and generated files"
# The tests of the structure print what to change. -count=1, because they read files that the cache does not know.
go test -count=1 ./test/arrows
go test -count=1 -run='^TestGenerated' ./config ./internal/layout

say "public API"
if release=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null); then
	go -C tools build -o "$out/tools/apidiff" golang.org/x/exp/cmd/apidiff
	old=$(mktemp -d)
	trap 'rm -rf "$old"' EXIT
	mkdir "$old/tree"
	git archive "$release" | tar -x -C "$old/tree"
	broken=
	# -m would compare the whole module at once, but does not work with current versions of golang.org/x/tools.
	for package in $(cd "$old/tree" && go list ./config ./pkg/...); do
		(cd "$old/tree" && "$out/tools/apidiff" -w "$old/api" "$package")
		broken+=$("$out/tools/apidiff" -incompatible "$old/api" "$package" | sed "s,^,$package: ,")
	done
	[ -z "$broken" ] || die 1 "incompatible with $release: $broken" "keep the old identifiers until the next major version"
else
	say "there is no release to compare with"
fi

say "golangci-lint"
go -C tools build -o "$out/tools/golangci-lint" github.com/golangci/golangci-lint/v2/cmd/golangci-lint
"$out/tools/golangci-lint" run ./...

say "govulncheck"
go -C tools build -o "$out/tools/govulncheck" golang.org/x/vuln/cmd/govulncheck
# It exits with 3 if it found vulnerabilities, and with another code if it failed.
vulnerable=3
status=0
report=$("$out/tools/govulncheck" ./... 2>&1) || status=$?
if [ "$status" = 0 ]; then
	say "the code calls no known vulnerable functions"
elif [ "$status" != "$vulnerable" ] && grep -qE 'fetching vulnerabilities|dial tcp' <<<"$report"; then
	say "the vulnerability database is not reachable: skipped"
else
	printf '%s\n' "$report" >&2
	[ "$status" != "$vulnerable" ] || die 1 "govulncheck found vulnerabilities" "update the modules that it names"
	die 1 "govulncheck exited with code $status"
fi
