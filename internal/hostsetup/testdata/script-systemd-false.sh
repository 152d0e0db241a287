#!/bin/sh
# host setup for the account dev: run this as root
set -eu

# assign 65536 subordinate uids and gids to dev
# users inside pods have these ids on the host (subuid(5), subgid(5))
usermod --add-subgids 165536-231071 dev
usermod --add-subuids 165536-231071 dev

# install the programs that a node runs
# not found: slirp4netns
# apt-get install -y slirp4netns

# load kernel modules
# a user namespace cannot load them
modprobe -a tun overlay br_netfilter
mkdir -p /etc/modules-load.d
cat > /etc/modules-load.d/rootlessnode.conf <<'EOF'
# Written by `rootlessnode host setup`; `rootlessnode host undo` removes it.
tun
overlay
br_netfilter
EOF

# raise kernel limits
# a node and its pods need more inotify instances; user namespaces must be allowed
mkdir -p /etc/sysctl.d
cat > /etc/sysctl.d/99-rootlessnode.conf <<'EOF'
# Written by `rootlessnode host setup`; `rootlessnode host undo` removes it.
fs.inotify.max_user_instances = 512
user.max_user_namespaces = 28633
EOF
sysctl -q -p /etc/sysctl.d/99-rootlessnode.conf

# let users open /dev/net/tun
# the node's network interface is a tap device
chmod 0666 /dev/net/tun
# without udev this lasts until the next reboot: run host setup at each boot

# create the runtime directory of dev
# it contains sockets and locks of nodes; this host has no logind to create it
mkdir -p /run/user
install -d -m 0700 -o UID -g UID /run/user/UID
