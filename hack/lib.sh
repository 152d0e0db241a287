# Functions and variables for the scripts in this directory: messages, packages, the Go toolchain, the account.
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

# The directory of Go's upstream archive, which is not on PATH by default.
command -v go >/dev/null 2>&1 || export PATH=$PATH:/usr/local/go/bin

# Programs or files, each with its Debian package: for building, for running, for the end-to-end tests.
build_needs='go:golang-go make:make gcc:gcc /usr/include/stdlib.h:libc6-dev git:git pkg-config:pkg-config /usr/include/seccomp.h:libseccomp-dev'
run_needs='newuidmap:uidmap slirp4netns:slirp4netns ip:iproute2 nft:nftables conntrack:conntrack /etc/protocols:netbase'
e2e_needs='/bin/busybox:busybox-static podman:podman curl:curl crun:crun'

# stage_suite FROM TO: copies the output of `hack/conformance.sh build` to a directory that other accounts can read.
stage_suite() {
	mkdir -p "$2"
	(cd "$1" && cp -r --reflink=auto conformance programs images.tar expectations.yaml recorded "$2/")
	chmod -R go+rX "$2"
}

# As root, these scripts use only the functions below for files that another account can write. That account may create malicious links,
# pipes and names there, may change them at any time, and may trace all of its own processes.

# unprivileged ACCOUNT SECONDS CMD...: runs a command as an account, with an empty environment, without root's terminal, standard input and
# error output, and for a limited time.
unprivileged() {
	local who=$1 limit=$2
	shift 2
	setsid --wait timeout --kill-after=5s "$limit" \
		setpriv --reuid="$who" --regid="$(id -g "$who")" --init-groups --no-new-privs \
		env -i "PATH=$PATH" LC_ALL=C "$@" </dev/null 2>/dev/null
}

# printable: removes control characters from an account's text, so that it can be printed on root's terminal.
printable() { LC_ALL=C tr -cd '\11\12\40-\176'; }

# Limits of collect: the number of files, bytes per file, and seconds for the list and for each file.
collect_files=1000 collect_bytes=$((64 << 20)) collect_seconds=60

# collect ACCOUNT FROM TO [PATTERN]: copies the regular files in the directory FROM, which the account can write, to TO, an existing
# directory of the caller. It copies only files that the account itself can read, does not follow links, and skips subdirectories. PATTERN
# restricts the names. It names the files that it skips. FROM itself must be in a directory that the account cannot write.
collect() {
	local who=$1 from=$2 to=$3 pattern=${4:-*} name count=0
	if [ ! -d "$to" ] || [ -L "$to" ] || [ ! -O "$to" ]; then
		die 1 "collect $from: $to is not a directory of $(id -un)" "rm -r $to"
	fi
	while IFS= read -r -d '' name; do
		# shellcheck disable=SC2254 # $pattern is a pattern
		case $name in
		*[!A-Za-z0-9._+@%=:,-]* | [.-]*)
			say "skipped because of its name: $(printf %q "$from/$name" | printable)"
			continue
			;;
		$pattern) ;;
		*) continue ;;
		esac
		count=$((count + 1))
		if [ "$count" -gt "$collect_files" ]; then
			say "remaining files skipped, because there are more than $collect_files files: $from"
			break
		fi
		collect_one "$who" "$from/$name" "$to/$name"
	done < <(unprivileged "$who" "$collect_seconds" find "$from" -mindepth 1 -maxdepth 1 -type f -printf '%f\0' |
		timeout "$collect_seconds" head -z -n "$((collect_files * 2))")
}

# collect_one ACCOUNT FILE TO: copies one file. The account may have replaced the file: dd does not open links or wait for pipes. Both
# sides have a time limit, because a process of the account may keep the pipe open.
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
		say "truncated to $collect_bytes bytes: $file"
	elif [ "$code" != 0 ]; then
		say "skipped or incomplete: $who cannot read $file"
		[ "$size" != 0 ] || rm -f "$to"
	fi
}

# dump_image ACCOUNT IMAGE TO: copies the regular files at the top of an ext4 image, which the account can write, to TO, as collect does.
# The image may contain names and links that lead out of the target directory, so the account unpacks it in a directory of its own.
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

# follow ACCOUNT FILE PID SECONDS: prints text that is appended to a file of the account, until a process ends.
follow() {
	unprivileged "$1" "$4" tail -n +1 -s 1 --pid="$3" -f "$2" | timeout "$4" sh -c "LC_ALL=C exec stdbuf -o0 tr -cd '\11\12\40-\176'"
}

# have NEED: succeeds if a program is on PATH or in the sbin directories, or if a file exists.
have() {
	case $1 in
	/*) [ -e "$1" ] ;;
	*) PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin command -v "$1" >/dev/null 2>&1 ;;
	esac
}

# missing_packages NEEDS: prints the packages of the needs that are not met.
missing_packages() {
	local need
	for need in $1; do
		have "${need%%:*}" || printf '%s ' "${need##*:}"
	done
}

# ensure_packages NEEDS: installs missing packages as root. As a user, it fails with a hint how to install them.
ensure_packages() {
	local missing
	missing=$(missing_packages "$1")
	[ -n "$missing" ] || return 0
	if [ "$(id -u)" != 0 ]; then
		die $exit_preflight "packages are missing: $missing" "sudo apt-get update && sudo apt-get install -y $missing"
	fi
	command -v apt-get >/dev/null 2>&1 || die $exit_preflight "packages are missing: $missing" \
		"install the packages with these or similar names of your distribution"
	say "installing $missing"
	apt-get update -qq
	# shellcheck disable=SC2086 # a list of packages
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# ensure_build: installs the packages for building, and puts a Go toolchain on PATH that every go.mod here accepts. The distribution's Go
# may be years old, but it can download a newer one as a module from the module proxy, verified with the checksum database.
#
#   ensure_build [NEEDS]       with additional needs, so that all missing packages are reported together
ensure_build() {
	ensure_packages "$build_needs ${1:-}"
	local want found module dir
	want=$(find "$top" -path "$out" -prune -o -name 'go*.mod' -exec sed -n 's/^go //p' {} + | sort -V | tail -n 1)
	if go_is "$want"; then return; fi
	found=$(cd / && go env GOVERSION)
	export GOTOOLCHAIN=go$want+auto # Go 1.21 and later download it themselves
	if go_is "$want"; then return; fi
	module=golang.org/toolchain@v0.0.1-go$want.linux-$(cd / && go env GOARCH)
	say "downloading Go $want, because the installed version is $found"
	dir=$(cd / && go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
	[ -n "$dir" ] || die $exit_preflight "Go $want or newer is needed, found $found" "install Go $want"
	chmod +x "$dir"/bin/* "$dir"/pkg/tool/*/* # modules do not preserve file modes
	PATH=$dir/bin:$PATH
	export PATH
}

# go_is VERSION: succeeds if the go command on PATH has at least this version, or downloads a toolchain that has.
go_is() { printf '%s\n' "go$1" "$(cd / && go env GOVERSION 2>/dev/null)" | sort -CV; }

# host_accounts PROGRAM ACCOUNT: prepares accounts with the program, and sets accounts to three accounts for the hosts of the tests.
host_accounts() {
	local number
	accounts=$2
	for number in 2 3; do
		"$1" host setup --user "$2$number" --create-user
		accounts=$accounts,$2$number
	done
}

# e2e_programs: builds the end-to-end tests, their programs, and the image of their pods from Debian's static busybox.
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

# stage_place: prints the parent directory for the build of a test account. On hosts with AppArmor's restriction and under OpenRC,
# `host setup` writes the path of the program to files of root. It refuses a path below a world-writable directory.
stage_place() {
	local place=/var/tmp
	if [ "$(id -u)" = 0 ] && { [ -e /run/openrc ] ||
		[ "$(cat /proc/sys/kernel/apparmor_restrict_unprivileged_userns 2>/dev/null)" = 1 ]; }; then
		place=/usr/local/lib
	fi
	echo "$place"
}
