#!/usr/bin/env bash
# Makes the ramdisk of a virtual machine: ramdisk.sh OUT TESTS PROGRAMS KERNELS BINARY...
#
# The ramdisk is written to OUT. It contains:
# - TESTS, the program with the tests, as /tests
# - PROGRAMS, a directory of compiled C programs, as /programs
# - the modules in KERNELS as /modules
# - each BINARY at its path on this machine
# - the everyday programs of this machine with their libraries
# TESTS and each BINARY are stripped of debug information.
#
# /tests gets the arguments after `--` on the kernel's command line.
set -euo pipefail

out=$1
tests=$2
programs=$3
kernels=$4
shift 4
packages=(acl attr bash coreutils dash e2fsprogs findutils grep iproute2 iputils-ping libc-bin mawk mount procps sed util-linux util-linux-extra)

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

# add_stripped FILE TARGET: copies a program without debug information to TARGET.
add_stripped() {
  mkdir -p "$root$(dirname "$2")"
  strip -o "$root$2" "$1"
}

everyday=()
while read -r file; do
  if [[ $file =~ /s?bin/ && -f $file && -x $file ]]; then
    everyday+=("$file")
    add_file "$file"
  fi
done < <(dpkg -L "${packages[@]}" 2>/dev/null)
add_file "$(command -v busybox)"
for name in sh awk; do add_file "$(command -v "$name")"; done
[[ ! -L /etc/alternatives/awk ]] || { mkdir -p "$root/etc/alternatives" && cp -P /etc/alternatives/awk "$root/etc/alternatives/"; }

add_stripped "$tests" /tests
for binary; do add_stripped "$binary" "$binary"; done
cp -r "$programs" "$root/programs"
mkdir "$root/modules"
cp -r "$kernels"/*.modules "$root/modules/"

# ldd reports an error and fails for a file that is no dynamic program. It indents the lines with libraries; the others name the programs.
{ ldd "${everyday[@]}" "$tests" "$@" 2>/dev/null || true; } | grep $'^\t' | grep -o '/[^ ):]*' | sort -u | while read -r library; do
  [[ ! -e $library ]] || { add_file "$library" && add_file "$(realpath "$library")"; }
done
for file in group ld.so.cache ld.so.conf nsswitch.conf passwd protocols services; do [[ ! -e /etc/$file ]] || add_file "/etc/$file"; done

cp "$(command -v busybox)" "$root/busybox"
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
/tests "$@"
echo "guest: exit code $?"
busybox poweroff -f
SECOND
chmod +x "$root/init" "$root/second"
(cd "$root" && find . -print0 | cpio --null --create --format=newc --quiet) >"$out"
