#!/usr/bin/env bash
# Installs what the tests in virtual machines need: an emulator, the tools that make its ramdisk, and Debian's kernels.
# The kernels are unpacked, not installed, in $JIG_TOOLS_DIR/kernels (default: target/tools/kernels).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools=${JIG_TOOLS_DIR:-target/tools}
mkdir -p "$tools/kernels"

missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
command -v busybox >/dev/null || missing+=(busybox-static)
command -v cpio >/dev/null || missing+=(cpio)
if [[ ${#missing[@]} != 0 ]]; then
  echo "installing ${missing[*]}"
  apt-get install -y --no-install-recommends "${missing[@]}"
fi

# unpack_kernel NAME METAPACKAGE [MODULE...]: unpacks the kernel that METAPACKAGE depends on to kernels/NAME, and its listed modules to
# kernels/NAME.modules. The guest loads the modules in this order.
unpack_kernel() {
  local name=$1 package scratch module number=10
  [[ ! -e $tools/kernels/$name ]] || return 0
  package=$(apt-cache depends "$2" | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
  echo "fetching $package"
  scratch=$(mktemp -d)
  # apt drops its privileges to download, and warns if it cannot write to this directory then.
  (cd "$scratch" && apt-get download "$package" 2>/dev/null && dpkg-deb -x ./*.deb unpacked)
  rm -rf "$tools/kernels/$name.modules"
  mkdir "$tools/kernels/$name.modules"
  for module in "${@:3}"; do
    cp "$(find "$scratch/unpacked" -name "$module.ko")" "$tools/kernels/$name.modules/$number-$module.ko"
    number=$((number + 1))
  done
  mv "$scratch"/unpacked/boot/vmlinuz-* "$tools/kernels/$name"
  rm -rf "$scratch"
}

# The tmpfs of 6.1 does not support mounts that map owners, so a workspace needs a disk.
unpack_kernel 6.1 linux-image-cloud-amd64 loop
unpack_kernel 6.12 linux-image-6.12-cloud-amd64
