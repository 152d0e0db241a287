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
