#!/usr/bin/env bash
# Checks a daemon in a virtual machine, as root and as an ordinary user, and runs C programs in a sandbox: smoke.sh JIG PROGRAM...
# Each program's answers follow a line with its name.
set -euo pipefail

jig=$1
shift
ln -s "$jig" /tmp/jigd
mkdir -m 700 /tmp/{root,user}
mkdir /tmp/{root,user}/workspace
chown -R 4242:4242 /tmp/user

echo "== jigd --check, root"
/tmp/jigd --check --workspace /tmp/root/workspace --state-dir /tmp/root/state
echo "== jigd --check, user"
setpriv --reuid 4242 --regid 4242 --clear-groups /tmp/jigd --check --workspace /tmp/user/workspace --state-dir /tmp/user/state

export JIG_ADDRESS=unix:/tmp/root/jig.sock
/tmp/jigd --workspace /tmp/root/workspace --state-dir /tmp/root/state --listen "$JIG_ADDRESS" >/tmp/root/log 2>&1 &
# Emulation on a loaded machine is slow.
for _ in {1..60}; do
  ! "$jig" health >/tmp/root/health 2>&1 || break
  sleep 1
done
cat /tmp/root/health

echo "== uname"
"$jig" run "uname -m; getconf PAGESIZE"
for program; do
  cp "/programs/$program" /tmp/root/workspace/
  echo "== $program"
  "$jig" run "./$program"
done
