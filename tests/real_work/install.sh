#!/usr/bin/env bash
# Installs what the tests of real work use and a machine may lack: programs with apt, pytest with pip.
# Existing installations stay unchanged.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools=${JIG_TOOLS_DIR:-target/tools}

# Each program, and the package that provides it.
missing=()
while read -r program package; do
  command -v "$program" >/dev/null || missing+=("$package")
done <<'END'
gcc gcc
g++ g++
make make
cmake cmake
ninja ninja-build
git git
node nodejs
npm npm
javac default-jdk-headless
gdb gdb
strace strace
rsync rsync
inotifywait inotify-tools
patch patch
sqlite3 sqlite3
script bsdutils
curl curl
openssl openssl
ssh-keygen openssh-client
perl perl
gawk gawk
xz xz-utils
zip zip
unzip unzip
less less
vim vim
ed ed
fakeroot fakeroot
top procps
tmux tmux
END
[[ -x /usr/bin/python3 ]] || missing+=(python3)
/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv python3-pip)
[[ -x /usr/local/go/bin/go ]] || command -v go >/dev/null || missing+=(golang-go)
deploy/release/install-packages "${missing[@]}"

if [[ ! -d $tools/pytest ]]; then
  echo "installing pytest"
  mkdir -p "$tools"
  part=$(mktemp -d -p "$tools")
  /usr/bin/python3 -m pip install --quiet --target "$part" pytest
  chmod 755 "$part"
  mv -T "$part" "$tools/pytest"
fi
