#!/usr/bin/env bash
# Programs for Kubernetes manifests, without a cluster: kustomize, and a validator with the
# published schemas. Source it after tools.sh.
set -euo pipefail

: "${tools:?directory of installed programs}"

# The Kubernetes versions whose schemas manifests must satisfy: the first with user namespaces for
# pods by default, and the newest.
kubernetes_versions=(1.33 1.37)

install_kubernetes_tools() {
  install_go_program kustomize sigs.k8s.io/kustomize/kustomize/v5 v5.7.1
  local venv=$tools/kubernetes-validate
  if [[ $("$venv/bin/kubernetes-validate" --version 2>/dev/null) != *1.37.0* ]]; then
    echo "installing kubernetes-validate 1.37.0"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check kubernetes-validate==1.37.0
  fi
}

# validate_manifests FILE...: fails if an object violates its schema, or has unknown keys.
validate_manifests() {
  local version
  for version in "${kubernetes_versions[@]}"; do
    "$tools/kubernetes-validate/bin/kubernetes-validate" --strict --kubernetes-version "$version" "$@"
  done
}
