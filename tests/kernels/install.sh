#!/usr/bin/env bash
# Installs what the tests in virtual machines need: an emulator, the tools and systemd that make its ramdisks, and Debian's kernels.
# The kernels are unpacked, not installed, in $JIG_TOOLS_DIR/kernels (default: target/tools/kernels). With JIG_FULL=1, those of arm64
# are in $JIG_TOOLS_DIR/arm64/kernels, beside everyday programs of arm64.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools=${JIG_TOOLS_DIR:-target/tools}
mkdir -p "$tools/kernels" "$tools/arm64/kernels"

missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
command -v busybox >/dev/null || missing+=(busybox-static)
command -v cpio >/dev/null || missing+=(cpio)
command -v mkfs.xfs >/dev/null || missing+=(xfsprogs)
command -v systemd-analyze >/dev/null || missing+=(systemd)
if [[ -n ${JIG_FULL:-} ]]; then
  command -v qemu-system-aarch64 >/dev/null || missing+=(qemu-system-arm)
  command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
fi
deploy/release/install-packages "${missing[@]}"

# add_kernel KERNELS NAME UNPACKED [MODULE...]: moves an unpacked kernel to KERNELS/NAME, and its listed modules to
# KERNELS/NAME.modules. The guest loads the modules in this order.
add_kernel() {
  local kernels=$1 name=$2 unpacked=$3 module number=10
  rm -rf "$kernels/$name.modules"
  mkdir "$kernels/$name.modules"
  for module in "${@:4}"; do
    cp "$(find "$unpacked" -name "$module.ko")" "$kernels/$name.modules/$number-$module.ko"
    number=$((number + 1))
  done
  mv "$unpacked"/boot/vmlinuz-* "$kernels/$name"
}

# is_unpacked KERNELS NAME [MODULE...]: whether a kernel is there with these modules.
is_unpacked() {
  local module
  [[ -e $1/$2 ]] || return 1
  for module in "${@:3}"; do
    compgen -G "$1/$2.modules/*-$module.ko" >/dev/null || return 1
  done
}

# unpack_kernel NAME METAPACKAGE [MODULE...]: unpacks the kernel that METAPACKAGE depends on.
unpack_kernel() {
  local package scratch
  ! is_unpacked "$tools/kernels" "$1" "${@:3}" || return 0
  package=$(apt-cache depends "$2" | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
  echo "fetching $package"
  scratch=$(mktemp -d)
  # apt drops its privileges to download, and warns if it cannot write to this directory then.
  (cd "$scratch" && apt-get download "$package" 2>/dev/null && dpkg-deb -x ./*.deb unpacked)
  add_kernel "$tools/kernels" "$1" "$scratch/unpacked" "${@:3}"
  rm -rf "$scratch"
}

# unpack_arm64_kernel NAME METAPACKAGE [MODULE...]: as unpack_kernel, for arm64.
unpack_arm64_kernel() {
  local scratch
  [[ ! -e $tools/arm64/kernels/$1 ]] || return 0
  echo "fetching $2 for arm64"
  scratch=$(mktemp -d)
  deploy/release/unpack-arm64 "$scratch" "$2*"
  add_kernel "$tools/arm64/kernels" "$1" "$scratch" "${@:3}"
  rm -rf "$scratch"
}

# The tmpfs of 6.1 does not support mounts that map owners, so a workspace needs a disk. Project quotas of ext4 need a module.
unpack_kernel 6.1 linux-image-cloud-amd64 loop quota_tree quota_v2 libcrc32c xfs
unpack_kernel 6.12 linux-image-6.12-cloud-amd64
[[ -n ${JIG_FULL:-} ]] || exit 0
unpack_arm64_kernel 6.1 linux-image-cloud-arm64 loop
unpack_arm64_kernel 6.12 linux-image-6.12-cloud-arm64
unpack_arm64_kernel 6.12-16k linux-image-6.12-arm64-16k

if [[ ! -e $tools/arm64/root ]]; then
  echo "fetching everyday programs for arm64"
  scratch=$(mktemp -d)
  mapfile -t packages <tests/kernels/everyday-packages
  deploy/release/unpack-arm64 --with-dependencies "$scratch" busybox-static "${packages[@]}"
  ln -s mawk "$scratch/usr/bin/awk"
  # The ramdisk needs neither documentation nor the programs of the package manager.
  rm -rf "${scratch:?}"/usr/{games,include,libexec,share,src} "${scratch:?}"/usr/lib/{apt,dpkg,systemd,udev} "${scratch:?}"/usr/lib/aarch64-linux-gnu/perl*
  mkdir -p "$tools/arm64"
  mv "$scratch" "$tools/arm64/root"
fi
