#!/usr/bin/env bash
# The container images, the profiles for nodes, and the Kubernetes manifests.
#
# tests/levels/kubernetes runs them. Here, images are built a second time from nothing, and all
# overlays are checked against the schemas of Kubernetes.
set -euo pipefail

: "${scratch:?directory of temporary files}"

source tests/deploy/kubernetes.sh
source tests/levels/kubernetes/revision.sh

install_image() {
  tests/levels/kubernetes/install.sh
  deploy/release/install-packages jq
}

# digest IMAGE: of the configuration, which contains the digests of all layers.
digest() {
  buildah inspect --type image --format '{{.FromImageID}}' "$1"
}

# second_build IMAGE: builds an image again, with a new base, and compares the digests.
second_build() {
  local first second
  # The installer has no base.
  [[ $1 != jigd ]] || podman untag "$(podman images --format '{{.Repository}}:{{.Tag}}' localhost/jig-base | head -1)" || true
  TAG=localhost/$1:second deploy/container/build "$1" "$(dpkg --print-architecture)=$tools/static/debug/jig" >&2 || return
  first=$(digest "localhost/$1:test")
  second=$(digest "localhost/$1:second")
  podman untag "localhost/$1:second"
  [[ $first == "$second" ]] && echo "reproducible: $first"
}

# check_function NAME STATUS PATTERN FUNCTION...: like `check`, for a function, without a time limit.
check_function() {
  local name=$1 expected=$2 pattern=$3 status=0
  shift 3
  "$@" >"$scratch/output" 2>"$scratch/errors" || status=$?
  [[ $status == "$expected" ]] || cat "$scratch/errors" >>"$scratch/output"
  # shellcheck disable=SC2016 # the inner shell expands
  check "$name" "$expected" "$pattern" bash -c 'cat "$1"; exit "$2"' bash "$scratch/output" "$status"
}

# in_image COMMAND...: in a container of jigd, without a network.
in_image() {
  podman run --rm --network none --entrypoint '' localhost/jigd:test "$@"
}

# files_of_installer: its files, with type, mode, owner and path.
files_of_installer() (
  container=$(buildah from localhost/jig-installer:test)
  cd "$(buildah mount "$container")"
  find . ! -type d -printf '%y %m %U %P %l\n' | sort
  buildah rm "$container" >/dev/null
)

base_megabytes() {
  echo "$(($(podman images --quiet localhost/jig-base | head -1 | xargs podman image inspect --format '{{.Size}}') / 1000000)) MB"
}

# first_command: loads the image into an empty store, and runs a command in a container of it.
first_command() (
  archive=$scratch/jigd.tar
  podman save --quiet --format oci-archive --output "$archive" localhost/jigd:test
  started=$EPOCHREALTIME
  store() {
    podman --root "$scratch/store" --runroot "$scratch/runs" "$@"
  }
  store load --quiet --input "$archive"
  container=$(store run --detach --network none --security-opt seccomp=deploy/profiles/jigd-seccomp.json --security-opt unmask=ALL \
    --volume project:/workspace localhost/jigd:test)
  for _ in {1..50}; do
    store exec "$container" jig health >/dev/null 2>&1 && break
    sleep 0.1
  done
  store exec "$container" jig run 'echo hello'
  print_first_command "$archive" "$started" >"$scratch/first-command"
  store exec "$container" jig info
  store rm --force --time 1 "$container" >/dev/null
  # Not `system reset`: it also removes the directory of events that all stores share, and fails if one is written meanwhile.
  store rmi --all --force >/dev/null
)

label() {
  podman image inspect --format "{{index .Labels \"org.opencontainers.image.$1\"}} {{.Config.User}}" "localhost/$2:test"
}

render_all() {
  local overlay
  for overlay in deploy/kubernetes/overlays/*; do
    kustomize build "$overlay" --output "$scratch/${overlay##*/}.yaml"
  done
  # Each component with each base that it is for.
  local pair
  for pair in "sidecar apparmor" "sidecar loopback" "sidecar metrics" "standalone apparmor"; do
    mkdir -p "$scratch/with"
    cp -r deploy/kubernetes/base deploy/kubernetes/components "$scratch/with/"
    mkdir -p "$scratch/with/overlays/one"
    printf 'resources: [../../base/%s]\ncomponents: [../../components/hardened, ../../components/%s]\n' "${pair% *}" "${pair#* }" \
      >"$scratch/with/overlays/one/kustomization.yaml"
    kustomize build "$scratch/with/overlays/one" --output "$scratch/${pair/ /-with-}.yaml"
  done
}

# manifests_are_valid: prints the number of valid objects, and kinds without a schema.
manifests_are_valid() {
  validate_manifests "$scratch"/*.yaml >"$scratch/validated" 2>&1 || {
    grep -v ' passed ' "$scratch/validated"
    return 1
  }
  echo "valid: $(grep -c ' passed ' "$scratch/validated")"
  grep -o 'find schema for kind [A-Za-z]*' "$scratch/validated" | sort -u
}

# with_unknown_key: a manifest with a misspelled key, which must fail.
with_unknown_key() {
  sed 's/hostUsers:/hostUser:/' "$scratch/sidecar-hardened.yaml" >"$scratch/misspelled"
  validate_manifests "$scratch/misspelled"
}

# apparmor_parser FILE: with the parser of Debian 13, which knows the rules of AppArmor 4.
parse_apparmor() {
  local root=$tools/apparmor
  if [[ ! -e $root/usr/sbin/apparmor_parser ]]; then
    mmdebstrap --quiet --variant=extract --include=apparmor,libc6 --skip=cleanup/apt trixie "$root"
    ln -s usr/lib "$root/lib"
    ln -s usr/lib64 "$root/lib64"
  fi
  install -D "$1" "$root/profile"
  chroot "$root" /usr/sbin/apparmor_parser --skip-kernel-load --skip-cache /profile && echo parsed
}

wrong_apparmor() {
  sed 's/  mount,/  mountt,/' deploy/profiles/jigd.apparmor >"$scratch/wrong"
  parse_apparmor "$scratch/wrong" 2>&1
}

seccomp_is_generated() {
  deploy/profiles/generate "$scratch/seccomp.json"
  cmp "$scratch/seccomp.json" deploy/profiles/jigd-seccomp.json && echo same
}

try_image() {
  export CONTAINERS_CONF=$PWD/tests/levels/podman/containers.conf

  check "jigd is the daemon" 0 '^jigd [0-9]+\.' podman run --rm --network none localhost/jigd:test --version
  # shellcheck disable=SC2016 # the container's shell expands
  check_function "its user is 10001, in its workspace" 0 '^10001 10001 /workspace$' in_image sh -c 'echo $(id -u) $(id -g) $PWD'
  check_function "it has no set-user-id programs" 0 '^none$' in_image sh -c 'find / -xdev -perm /6000 -type f 2>/dev/null | grep . || echo none'
  check_function "its user owns nothing but its directories" 0 '^/var/lib/jig /workspace $' in_image sh -c 'find / -xdev -user 10001 2>/dev/null | sort | tr "\n" " "'
  check_function "commands have Git and Python" 0 'git version.*Python 3' in_image sh -c 'git --version; python3 --version'
  check_function "it has no logs and caches" 0 '^$' in_image sh -c 'find /var/log /var/cache/apt /var/lib/apt/lists /tmp -type f ! -name lock 2>/dev/null || true'
  check_function "in an empty store, it runs a command at L3" 0 'hello.*L3' first_command
  cat "$scratch/first-command"
  check_function "its labels name the version" 0 '^[0-9.]+ 10001:10001$' label version jigd
  check_function "the installer has three files and a link" 0 '^f 644 0 usr/share/doc/busybox-static/copyright .f 755 0 bin/cp .f 755 0 opt/jig/jig .l 777 0 opt/jig/jigd jig$' files_of_installer
  check_function "its labels name the user" 0 ' 10001:10001$' label title jig-installer

  check_function "two builds of jigd are the same" 0 '^reproducible: [0-9a-f]{64}$' second_build jigd
  check_function "two builds of jig-installer are the same" 0 '^reproducible: [0-9a-f]{64}$' second_build jig-installer
  check_function "jigd has 190 to 239 MB without the program" 0 '^(19|2[0-3])[0-9] MB$' base_megabytes

  check_function "overlays render" 0 '^$' render_all
  check_function "manifests satisfy the schemas" 0 '^valid: 1[0-9][0-9].find schema for kind PodMonitor$' manifests_are_valid
  check_function "an unknown key is found" 1 "'hostUser' was unexpected" with_unknown_key
  check_function "the seccomp profile is generated" 0 '^same$' seccomp_is_generated
  check_function "the AppArmor profile for pods is valid" 0 'parsed$' parse_apparmor deploy/profiles/jigd.apparmor
  check_function "the AppArmor profile for hosts is valid" 0 'parsed$' parse_apparmor deploy/profiles/jigd-userns.apparmor
  check_function "a wrong rule is found" 1 'syntax error' wrong_apparmor
}
