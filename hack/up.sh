#!/usr/bin/env bash
# `make up`: from a fresh clone to a Ready node. As an ordinary user it starts the node for that user. As root it sets the
# host up for a dedicated account, installs below /usr/local, and starts the node as that account.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

ensure_build "$run_needs"
make --no-print-directory build components

if [ "$(id -u)" != 0 ]; then
	PATH=$PATH:/usr/sbin:/sbin exec "$out/bin/rootlessnode" up "$@"
fi

# The clone may lie where only root can read, so the account gets a copy.
prefix=/usr/local
hack/install.sh "$out" "$prefix"
"$prefix/bin/rootlessnode" host setup --user "$account" --create-user
"$prefix/bin/rootlessnode" host enter --user "$account" -- up "$@"
cat <<EOF

The node belongs to the account $account, and root is no user of it. From a shell of root's, put this before the commands:
  rootlessnode host enter --user $account -- kubectl get nodes
or use the kubeconfig that is named above. \`make down\` stops the node.
EOF
