#!/bin/sh
# Builds the node's components; see README.md, or run it with --help.
#
# It only builds and starts the driver, a Go program without dependencies. The
# driver is built and then run, because `go run` hides exit codes and signals.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
if ! command -v go >/dev/null 2>&1; then
	echo "build: error: go command not found" >&2
	echo "hint: install Go; components/*/go.mod contain the oldest supported release" >&2
	exit 1
fi
driver=$here/../_out/.stamps/driver
# Ignore the user's settings for other builds, and a Go workspace.
GOWORK=off GOFLAGS=-mod=readonly CGO_ENABLED=0 GOOS='' GOARCH='' \
	go build -C "$here/internal/build" -trimpath -buildvcs=false -o "$driver" .
exec "$driver" --components "$here" "$@"
