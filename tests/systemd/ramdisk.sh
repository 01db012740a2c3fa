#!/usr/bin/env bash
# Makes the ramdisk of a virtual machine whose process 1 is systemd: ramdisk.sh OUT BASE UNITS DAEMON CLIENT
#
# OUT is BASE, the ramdisk of tests/kernels/ramdisk.sh, with:
# - the systemd of this machine with its libraries
# - the units in the directory UNITS, installed as docs/operate/systemd.md says
# - DAEMON and CLIENT, which BASE contains, as /usr/bin/jigd and /usr/bin/jig
# - jig-tests.service, which runs the program and the arguments after `--` on the kernel's command line
set -euo pipefail

out=$1
base=$2
units=$3
daemon=$4
client=$5

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

# add_file FILE: copies a file to its path on this machine.
add_file() {
  local target
  target=$root$(realpath -m "$(dirname "$1")")/$(basename "$1")
  mkdir -p "$(dirname "$target")"
  cp -P --preserve=mode "$1" "$target"
}

programs=()
while read -r file; do
  case $file in
    # It empties /tmp at boot, which may contain the programs under test.
    */tmpfiles.d/tmp.conf) continue ;;
    /usr/share/* | /lib/modprobe.d/* | */system-generators/* | */kernel/install.d/*) continue ;;
  esac
  [[ -L $file || -f $file ]] || continue
  add_file "$file"
  [[ ! -x $file ]] || programs+=("$file")
done < <(dpkg -L systemd libsystemd-shared)

# ldd reports an error and fails for a file that is no dynamic program. It indents the lines with libraries.
{ ldd "${programs[@]}" 2>/dev/null || true; } | grep $'^\t' | grep -o '/[^ ):]*' | sort -u | while read -r library; do
  [[ ! -e $library ]] || { add_file "$library" && add_file "$(realpath "$library")"; }
done

install -D --mode=644 --target-directory="$root/etc/systemd/system" "$units"/*.service "$units"/*.socket
install -D --mode=644 "$units/jig.sysusers" "$root/usr/lib/sysusers.d/jig.conf"
install -D --mode=644 "$units/jigd.toml" "$root/etc/jigd/jigd.toml"

mkdir -p "$root"/etc/systemd/system.conf.d "$root"/etc/systemd/journald.conf.d "$root"/var/log
# Under emulation, every unit takes time. No unit waits for devices, consoles or the network.
ln -s /etc/systemd/system/jig-tests.target "$root/etc/systemd/system/default.target"
cat >"$root/etc/systemd/system/jig-tests.target" <<'UNIT'
[Unit]
Description=The tests
Requires=basic.target jig-tests.service
After=basic.target
UNIT
cat >"$root/etc/systemd/system/jig-tests.service" <<'UNIT'
[Unit]
Description=Runs the tests, and halts the machine
After=basic.target
FailureAction=poweroff-immediate
SuccessAction=poweroff-immediate

[Service]
Type=oneshot
ExecStart=/run-tests
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
UNIT
for unit in systemd-firstboot systemd-logind systemd-resolved systemd-timesyncd systemd-networkd systemd-pstore \
  systemd-sysctl systemd-random-seed systemd-update-utmp systemd-machine-id-commit systemd-remount-fs systemd-boot-system-token getty@tty1; do
  ln -s /dev/null "$root/etc/systemd/system/$unit.service"
done
for unit in sys-fs-fuse-connections.mount dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
  sys-kernel-config.mount proc-sys-fs-binfmt_misc.automount systemd-ask-password-wall.path systemd-ask-password-console.path; do
  ln -s /dev/null "$root/etc/systemd/system/$unit"
done
: >"$root/etc/fstab"
echo jig-guest >"$root/etc/hostname"
echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"

cat >"$root/second" <<SECOND
#!/bin/sh
export PATH=/usr/bin
# Both are on one file system. At their own paths, ProtectHome= may hide them.
ln "$daemon" /usr/bin/jigd
ln "$client" /usr/bin/jig
printf '%s\n' "\$@" >/arguments
exec /lib/systemd/systemd
SECOND
cat >"$root/run-tests" <<'RUN'
#!/bin/sh
export PATH=/usr/sbin:/usr/bin HOME=/root TMPDIR=/var/tmp
export JIG_TEST_GUEST="$(uname -r)" JIG_TEST_PROGRAMS=/programs JIG_TEST_TIMEOUT_SEC=120 RUST_BACKTRACE=0
mkdir -p /var/tmp
chmod 1777 /tmp /var/tmp
echo "guest: $(uname -r), systemd up after $(cut -d' ' -f1 /proc/uptime) s"
# Arguments contain no blanks.
# shellcheck disable=SC2046
$(cat /arguments)
echo "guest: exit code $?"
RUN
chmod +x "$root/second" "$root/run-tests"

(cd "$root" && find . -print0 | cpio --null --create --format=newc --quiet) | cat "$base" - >"$out"
