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

# make systemd delegate all cgroup controllers to user managers
# limits of pods for CPU, memory and processes need them; by default systemd delegates only some
mkdir -p /etc/systemd/system/user@.service.d
cat > /etc/systemd/system/user@.service.d/delegate.conf <<'EOF'
# Written by `rootlessnode host setup`; `rootlessnode host undo` removes it.
[Service]
Delegate=cpu cpuset io memory pids
EOF
systemctl daemon-reload
# takes effect at the next login of dev, or now with: systemctl restart user@$(id -u dev).service

# enable linger for dev
# without it logind stops the account's processes when its last session ends
loginctl enable-linger dev
