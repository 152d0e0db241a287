#!/bin/sh
# Vets and tests rootlessnode's code below components/. It uses the flags of the
# build, so that compiled packages are reused.
#
# Of the Kubernetes module it checks only the packages without Kubernetes imports,
# because vet reads every package that a program links, which takes ten minutes.
# The build compiles the rest.
set -eu

cd -- "$(dirname -- "$0")"
export GOWORK=off CGO_ENABLED=0 GOFLAGS='-mod=readonly -trimpath -buildvcs=false -tags=grpcnotrace'
unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
	printf 'test: error: not formatted by gofmt:\n%s\n' "$unformatted" >&2
	exit 1
fi
for dir in internal/build images coredns flannel kube-network-policies storage-provisioner registry kubernetes/internal/dispatch kubernetes/internal/nodeusage; do
	echo "== $dir"
	(cd "$dir" && go vet ./... && go test ./...)
done
