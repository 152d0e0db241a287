# Shared by the scripts of this directory: messages, packages, the Go toolchain, the account.
# shellcheck shell=bash disable=SC2034 # the variables are for the scripts that source this file

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${OUT:-_out}
case $out in /*) ;; *) out=$top/$out ;; esac
account=${ROOTLESSNODE_ACCOUNT:-rootlessnode}

# Exit codes of rootlessnode that these scripts share.
exit_preflight=3

say() { printf '==> %s\n' "$*"; }
die() {
	local code=$1
	shift
	printf 'error: %s\n' "$1" >&2
	[ $# -lt 2 ] || printf 'hint:\n%s\n' "$2" >&2
	exit "$code"
}

# Where the Go of its authors goes, whose installer leaves PATH alone.
command -v go >/dev/null 2>&1 || export PATH=$PATH:/usr/local/go/bin

# Programs and the Debian package that brings each: for building, for running, for the end-to-end tests.
build_needs='go:golang-go make:make gcc:gcc /usr/include/stdlib.h:libc6-dev git:git pkg-config:pkg-config /usr/include/seccomp.h:libseccomp-dev'
run_needs='newuidmap:uidmap slirp4netns:slirp4netns ip:iproute2 nft:nftables conntrack:conntrack /etc/protocols:netbase'
e2e_needs='/bin/busybox:busybox-static'

# stage_suite FROM TO: copies what `hack/conformance.sh build` left to where another account can read it.
stage_suite() {
	mkdir -p "$2"
	(cd "$1" && cp -r --reflink=auto conformance programs images.tar expectations.yaml recorded "$2/")
	chmod -R go+rX "$2"
}

# What these scripts do as root with files that another account can write goes through the functions below. That account may have put
# links, pipes and names there that are meant for root, may change them at any time, and may trace every process of its own.

# unprivileged ACCOUNT SECONDS CMD...: runs a command as an account, with an empty environment, without root's terminal, standard input and
# error output, and for a limited time.
unprivileged() {
	local who=$1 limit=$2
	shift 2
	setsid --wait timeout --kill-after=5s "$limit" \
		setpriv --reuid="$who" --regid="$(id -g "$who")" --init-groups --no-new-privs \
		env -i "PATH=$PATH" LC_ALL=C "$@" </dev/null 2>/dev/null
}

# printable: what may go from an account's file to root's terminal.
printable() { LC_ALL=C tr -cd '\11\12\40-\176'; }

# Limits of collect: files, bytes of each, seconds for the list and for each file.
collect_files=1000 collect_bytes=$((64 << 20)) collect_seconds=60

# collect ACCOUNT FROM TO [PATTERN]: copies the regular files in the directory FROM, which the account can write, to TO, an existing
# directory of ours: what the account itself may read of them, links not followed, subdirectories left out. PATTERN restricts the names.
# What is left out is named. FROM itself must be in a directory that the account cannot write.
collect() {
	local who=$1 from=$2 to=$3 pattern=${4:-*} name count=0
	if [ ! -d "$to" ] || [ -L "$to" ] || [ ! -O "$to" ]; then
		die 1 "collect $from: $to is not a directory of $(id -un)" "rm -r $to"
	fi
	while IFS= read -r -d '' name; do
		# shellcheck disable=SC2254 # $pattern is a pattern
		case $name in
		*[!A-Za-z0-9._+@%=:,-]* | [.-]*)
			say "left out, for its name: $(printf %q "$from/$name" | printable)"
			continue
			;;
		$pattern) ;;
		*) continue ;;
		esac
		count=$((count + 1))
		if [ "$count" -gt "$collect_files" ]; then
			say "left out, because there are more than $collect_files files: $from"
			break
		fi
		collect_one "$who" "$from/$name" "$to/$name"
	done < <(unprivileged "$who" "$collect_seconds" find "$from" -mindepth 1 -maxdepth 1 -type f -printf '%f\0' |
		timeout "$collect_seconds" head -z -n "$((collect_files * 2))")
}

# collect_one ACCOUNT FILE TO: copies one file. The file may be another one by now: dd opens no link and waits for no pipe. Both ends
# have a limit of time, since a process of the account's may keep the pipe open.
collect_one() {
	local who=$1 file=$2 to=$3 code=0 size
	rm -f "$to"
	(
		umask 022
		set -o noclobber -o pipefail
		unprivileged "$who" "$collect_seconds" dd "if=$file" iflag=nofollow,nonblock bs=64K status=none |
			timeout "$collect_seconds" head -c "$((collect_bytes + 1))" >"$to"
	) || code=$?
	size=$(stat -c %s "$to")
	if [ "$size" -gt "$collect_bytes" ]; then
		truncate -s "$collect_bytes" "$to"
		say "cut off after $collect_bytes bytes: $file"
	elif [ "$code" != 0 ]; then
		say "left out, or not whole: $who cannot read $file"
		[ "$size" != 0 ] || rm -f "$to"
	fi
}

# dump_image ACCOUNT IMAGE TO: copies the regular files at the top of an ext4 image that the account can write to TO, as collect does. An
# image may hold names and links that lead out of the directory that it is unpacked in, so the account unpacks it, in one of its own.
dump_image() {
	local who=$1 image=$2 to=$3 dir
	dir=$(mktemp -d /var/tmp/rootlessnode-dump.XXXXXX)
	chmod 0755 "$dir"
	install -d -m 0700 -o "$who" "$dir/dump"
	# ulimit counts blocks of 512 bytes.
	# shellcheck disable=SC2016 # for the inner shell
	unprivileged "$who" "$collect_seconds" sh -c 'ulimit -f "$2"; cd "$0" && exec debugfs -R "rdump / ." "$1"' \
		"$dir/dump" "$image" $((collect_bytes / 512 + 1)) >/dev/null || true
	collect "$who" "$dir/dump" "$to"
	rm -rf "$dir"
}

# follow ACCOUNT FILE PID SECONDS: shows what is added to a file of the account until a process ends.
follow() {
	unprivileged "$1" "$4" tail -n +1 -s 1 --pid="$3" -f "$2" | timeout "$4" sh -c "LC_ALL=C exec stdbuf -o0 tr -cd '\11\12\40-\176'"
}

# have NEED: a program on PATH or in the sbin directories, or a file.
have() {
	case $1 in
	/*) [ -e "$1" ] ;;
	*) PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin command -v "$1" >/dev/null 2>&1 ;;
	esac
}

# missing_packages NEEDS: the packages of those needs that are not met.
missing_packages() {
	local need
	for need in $1; do
		have "${need%%:*}" || printf '%s ' "${need##*:}"
	done
}

# ensure_packages NEEDS: installs as root; as a user, tells what to type and stops.
ensure_packages() {
	local missing
	missing=$(missing_packages "$1")
	[ -n "$missing" ] || return 0
	if [ "$(id -u)" != 0 ]; then
		die $exit_preflight "packages are missing: $missing" "sudo apt-get update && sudo apt-get install -y $missing"
	fi
	command -v apt-get >/dev/null 2>&1 || die $exit_preflight "packages are missing: $missing" \
		"install what your distribution calls them"
	say "installing $missing"
	apt-get update -qq
	# shellcheck disable=SC2086 # a list of packages
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# ensure_build: what building takes, and a Go toolchain on PATH that every go.mod here accepts. A distribution's may be years old:
# it can still fetch a newer one, which the module proxy has as a module and the checksum database vouches for.
#
#   ensure_build [NEEDS]       with what else is needed, so that all that is missing is told at once
ensure_build() {
	ensure_packages "$build_needs ${1:-}"
	local want found module dir
	want=$(find "$top" -path "$out" -prune -o -name go.mod -exec sed -n 's/^go //p' {} + | sort -V | tail -n 1)
	if go_is "$want"; then return; fi
	found=$(cd / && go env GOVERSION)
	export GOTOOLCHAIN=go$want+auto # Go 1.21 and newer do the rest
	if go_is "$want"; then return; fi
	module=golang.org/toolchain@v0.0.1-go$want.linux-$(cd / && go env GOARCH)
	say "fetching Go $want, since the machine's is $found"
	dir=$(cd / && go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
	[ -n "$dir" ] || die $exit_preflight "Go $want or newer is needed, found $found" "install Go $want"
	chmod +x "$dir"/bin/* "$dir"/pkg/tool/*/* # modules have no modes
	PATH=$dir/bin:$PATH
	export PATH
}

# go_is VERSION: go on PATH is that new, by itself or with the toolchain that it fetches.
go_is() { printf '%s\n' "go$1" "$(cd / && go env GOVERSION 2>/dev/null)" | sort -CV; }

# host_accounts PROGRAM ACCOUNT: in $accounts, three accounts that the program prepares for hosts of the tests.
host_accounts() {
	local number
	accounts=$2
	for number in 2 3; do
		"$1" host setup --user "$2$number" --create-user
		accounts=$accounts,$2$number
	done
}

# e2e_programs builds the end-to-end tests, what they embed, and the image of their pods from Debian's static busybox.
e2e_programs() {
	local -x CGO_ENABLED=0
	local applet files=()
	go build -trimpath -o "$out/bin/embed" ./examples/embed
	go test -c -o "$out/bin/e2e.test" ./test/e2e
	mkdir -p "$out/test"
	for applet in busybox sh cat cp echo env false ls mkdir nc nslookup ping rm sleep tar test touch true wget httpd id mount umount grep; do
		files+=(-file "/bin/$applet=/bin/busybox")
	done
	go build -trimpath -ldflags "-s -w" -o "$out/test/netprobe" ./test/e2e/netprobe
	go build -trimpath -ldflags "-s -w" -o "$out/test/csidriver" ./test/e2e/csidriver
	files+=(-file "/bin/netprobe=$out/test/netprobe" -file "/bin/csidriver=$out/test/csidriver")
	(cd "$top/components/images" && go run . -o "$out/test/busybox.tar" -name rootlessnode.test/busybox:1 -entrypoint /bin/sh "${files[@]}")
}

# stage_place: where a build for a test account is put. `host setup` refuses to name a program in files of root that lies
# below a directory that is open to everyone; it does so on hosts with AppArmor's restriction and under OpenRC.
stage_place() {
	local place=/var/tmp
	if [ "$(id -u)" = 0 ] && { [ -e /run/openrc ] ||
		[ "$(cat /proc/sys/kernel/apparmor_restrict_unprivileged_userns 2>/dev/null)" = 1 ]; }; then
		place=/usr/local/lib
	fi
	echo "$place"
}
