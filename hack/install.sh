#!/usr/bin/env bash
# install.sh OUT PREFIX: installs a build below PREFIX. It replaces changed files only, each one atomically.
# install.sh --remove PREFIX: removes the installed files.
set -euo pipefail

if [ "$1" = --remove ]; then
	rm -rf "$2/bin/rootlessnode" "$2/libexec/rootlessnode" "$2/share/rootlessnode"
	exit
fi
from=$1 to=$2
umask 022
(cd "$from" && find bin/rootlessnode libexec/rootlessnode share/rootlessnode \( -type f -o -type l \) -print) | while read -r f; do
	mkdir -p "$to/$(dirname "$f")"
	if [ ! -L "$from/$f" ] && cmp -s "$from/$f" "$to/$f" 2>/dev/null; then
		continue
	fi
	cp -a --no-preserve=ownership "$from/$f" "$to/$f.new"
	[ -L "$from/$f" ] || chmod go+rX "$to/$f.new"
	mv -f "$to/$f.new" "$to/$f"
done
echo "==> installed below $to"
