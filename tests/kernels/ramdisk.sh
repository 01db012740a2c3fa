#!/usr/bin/env bash
# Makes the ramdisk of a virtual machine: ramdisk.sh ARCHITECTURE OUT PROGRAMS KERNELS BINARY...
#
# ARCHITECTURE is amd64, which is that of this machine, or arm64.
# The ramdisk is written to OUT. It contains:
# - PROGRAMS, a directory of compiled C programs, as /programs
# - the modules in KERNELS as /modules
# - each BINARY at its path on this machine, without debug information
# - smoke.sh as /smoke, and serve.sh as /serve
# - everyday programs with their libraries: those of this machine, or for arm64 those beside KERNELS
#
# The words after `--` on the kernel's command line are the program to run, by its path, and its arguments.
set -euo pipefail

architecture=$1
out=$2
programs=$3
kernels=$4
shift 4
strip="strip"
[[ $architecture == amd64 ]] || strip=aarch64-linux-gnu-strip

scripts=$(dirname "${BASH_SOURCE[0]}")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{dev,etc,home,proc,root,run,sys,tmp,usr/{bin,sbin,lib,lib64},var}
for name in bin sbin lib lib64; do ln -s "usr/$name" "$root/$name"; done

# add_file FILE: copies a file to its path on this machine.
add_file() {
  local target
  target=$root$(realpath -m "$(dirname "$1")")/$(basename "$1")
  mkdir -p "$(dirname "$target")"
  [[ -e $target || -L $target ]] || cp -P --preserve=mode "$1" "$target"
}

# add_everyday_programs BINARY...: copies the everyday programs of this machine, with their libraries and those of each BINARY.
add_everyday_programs() {
  local everyday=() packages file name library
  mapfile -t packages <"$scripts/everyday-packages"
  while read -r file; do
    if [[ $file =~ /s?bin/ && -f $file && -x $file ]]; then
      everyday+=("$file")
      add_file "$file"
    fi
  done < <(dpkg -L "${packages[@]}" 2>/dev/null)
  add_file "$(command -v busybox)"
  everyday+=("$(command -v mkfs.xfs)")
  for name in mkfs.xfs sh awk; do add_file "$(command -v "$name")"; done
  [[ ! -L /etc/alternatives/awk ]] || { mkdir -p "$root/etc/alternatives" && cp -P /etc/alternatives/awk "$root/etc/alternatives/"; }

  # ldd reports an error and fails for a file that is no dynamic program. It indents the lines with libraries; the others name the programs.
  { ldd "${everyday[@]}" "$@" 2>/dev/null || true; } | grep $'^\t' | grep -o '/[^ ):]*' | sort -u | while read -r library; do
    [[ ! -e $library ]] || { add_file "$library" && add_file "$(realpath "$library")"; }
  done
  cp "$(command -v busybox)" "$root/busybox"
}

if [[ $architecture == amd64 ]]; then
  add_everyday_programs "$@"
else
  cp -a "$(dirname "$kernels")/root/usr/." "$root/usr/"
  cp "$root/usr/bin/busybox" "$root/busybox"
fi

for binary; do
  mkdir -p "$root$(dirname "$binary")"
  "$strip" -o "$root$binary" "$binary"
done
cp "$scripts/smoke.sh" "$root/smoke"
cp "$scripts/serve.sh" "$root/serve"
cp -r "$programs" "$root/programs"
mkdir "$root/modules"
cp -r "$kernels"/*.modules "$root/modules/"

files=(group nsswitch.conf passwd protocols services)
[[ $architecture != amd64 ]] || files+=(ld.so.cache ld.so.conf)
for file in "${files[@]}"; do [[ ! -e /etc/$file ]] || add_file "/etc/$file"; done

cat >"$root/init" <<'INIT'
#!/busybox sh
# The kernel unpacks the ramdisk into its first root, which pivot_root(2) cannot replace.
/busybox mkdir /new
/busybox mount -t tmpfs -o mode=755,size=80% root /new
for entry in /*; do
  case $entry in
    /new | /init | /busybox) ;;
    /dev | /proc | /sys) /busybox mkdir -p "/new$entry" ;;
    *) /busybox mv "$entry" /new/ ;;
  esac
done
exec /busybox switch_root /new /second "$@"
INIT
cat >"$root/second" <<'SECOND'
#!/bin/sh
export PATH=/usr/sbin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
# /tmp is not a separate file system: it may contain the programs under test.
chmod 1777 /tmp
mount -t securityfs securityfs /sys/kernel/security
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
echo "guest: $(uname -r), up after $(cut -d' ' -f1 /proc/uptime) s"
for modules in /modules/*; do
  case $(uname -r) in
    "$(basename "$modules" .modules)".*)
      for module in "$modules"/*.ko; do
        [ -e "$module" ] && busybox insmod "$module"
      done
      ;;
  esac
done
if [ -e /dev/loop-control ]; then
  truncate -s 256M /disk
  mke2fs -q -t ext4 /disk
  mkdir -p /var/tmp
  mount -o loop /disk /var/tmp
  chmod 1777 /var/tmp
  export TMPDIR=/var/tmp
fi
export JIG_TEST_GUEST="$(uname -r)" JIG_TEST_PROGRAMS=/programs JIG_TEST_TIMEOUT_SEC=120 RUST_BACKTRACE=0
"$@"
echo "guest: exit code $?"
busybox poweroff -f
SECOND
chmod +x "$root/init" "$root/second"
(cd "$root" && find . -print0 | cpio --null --create --format=newc --quiet) >"$out"
