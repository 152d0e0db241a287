#!/usr/bin/env bash
# `make down`: stops the node that `make up` started, as the same account.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

if [ "$(id -u)" != 0 ]; then
	exec "$out/bin/rootlessnode" down "$@"
fi
exec /usr/local/bin/rootlessnode host enter --user "$account" -- down "$@"
