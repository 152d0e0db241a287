#!/usr/bin/env bash
# `make up`: builds a fresh clone and starts a node. As an ordinary user it starts the node for that user. As root it sets up the
# host for a dedicated account, installs below /usr/local, and starts the node as that account.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

ensure_build "$run_needs"
make --no-print-directory build components

if [ "$(id -u)" != 0 ]; then
	PATH=$PATH:/usr/sbin:/sbin exec "$out/bin/rootlessnode" up "$@"
fi

# Install a copy for the account, because the clone may be in a directory that only root can read.
prefix=/usr/local
hack/install.sh "$out" "$prefix"
"$prefix/bin/rootlessnode" host setup --user "$account" --create-user
"$prefix/bin/rootlessnode" host enter --user "$account" -- up "$@"
cat <<EOF

The node belongs to the account $account. To use it from a shell of root, run commands like this:
  rootlessnode host enter --user $account -- kubectl get nodes
or use the kubeconfig that is shown above. \`make down\` stops the node.
EOF
