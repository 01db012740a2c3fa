#!/usr/bin/env bash
# Installs the programs for the tests of the Kubernetes manifests, and builds the images:
#
#   localhost/jigd:test                 deploy/container/Containerfile
#   localhost/jig-installer:test        deploy/container/Containerfile.installer
#   localhost/jig-test-toolchain:test   an image of a user: BusyBox, and no C library
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
tests/levels/install.sh
tools=${JIG_TOOLS_DIR:-target/tools}
mkdir -p "$tools/bin"
tools=$(cd "$tools" && pwd)
export PATH="$tools/bin:$PATH" CONTAINERS_CONF=$PWD/tests/levels/podman/containers.conf

# The next process finds what this one has made.
exec {lock}>"$tools/images.lock"
flock "$lock"

source tests/deploy/tools.sh
source tests/deploy/kubernetes.sh
deploy/release/install-packages binutils buildah mmdebstrap
install_kubernetes_tools
unset_variables_of_cargo

# A static program without a build for another target: only the last step differs from `cargo build`.
cargo rustc --quiet --locked --bin jig --config "build.build-dir='${CARGO_TARGET_DIR:-$PWD/target}'" --target-dir "$tools/static" -- \
  -C target-feature=+crt-static -C strip=debuginfo
program=$tools/static/debug/jig

# The images are current if their program and their build are.
stamp=$(sha256sum "$program" deploy/container/* tests/levels/kubernetes/install.sh | cut -d' ' -f1 | sha256sum)
if [[ $(cat "$tools/images.stamp" 2>/dev/null) == "$stamp" ]] && podman image exists localhost/jigd:test &&
  podman image exists localhost/jig-installer:test && podman image exists localhost/jig-test-toolchain:test; then
  exit
fi

# One time and one revision, so that a base serves builds of all commits.
source tests/levels/kubernetes/revision.sh
architecture=$(dpkg --print-architecture)
TAG=localhost/jigd:test deploy/container/build jigd "$architecture=$program"
TAG=localhost/jig-installer:test deploy/container/build jig-installer "$architecture=$program"

container=$(buildah from localhost/jig-installer:test)
busybox=$(buildah mount "$container")/bin/cp
toolchain=$(buildah from scratch)
root=$(buildah mount "$toolchain")
mkdir -p "$root"/{usr/bin,etc,proc,dev,sys,tmp,run}
cp "$busybox" "$root/usr/bin/busybox"
"$root/usr/bin/busybox" --list | grep -vx busybox | xargs -I{} ln -s busybox "$root/usr/bin/{}"
ln -s usr/bin "$root/bin"
echo toolchain of a user >"$root/usr/release"
buildah config --env PATH=/usr/bin "$toolchain"
buildah commit --quiet --rm "$toolchain" localhost/jig-test-toolchain:test
buildah rm "$container" >/dev/null

echo "$stamp" >"$tools/images.stamp"
