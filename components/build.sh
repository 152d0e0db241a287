#!/bin/sh
# Builds the node's components; see README.md, or run it with --help.
#
# It only builds and starts the driver, a Go program without dependencies. The
# driver is built and then run, because `go run` hides exit codes and signals.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
if ! command -v go >/dev/null 2>&1; then
	echo "build: error: no go command" >&2
	echo "hint: install Go; the oldest release that will do is named in components/*/go.mod" >&2
	exit 1
fi
driver=$here/../_out/.stamps/driver
# Settings meant for other builds, and a workspace around this one, must not leak in.
GOWORK=off GOFLAGS=-mod=readonly CGO_ENABLED=0 GOOS='' GOARCH='' \
	go build -C "$here/internal/build" -trimpath -buildvcs=false -o "$driver" .
exec "$driver" --components "$here" "$@"
