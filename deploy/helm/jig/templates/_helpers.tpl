{{/* Names, labels and parts that several templates use. */}}

{{- define "jig.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default "jigd" .Values.nameOverride -}}
{{- if or (contains $name .Release.Name) (eq .Release.Name "jig") -}}
{{- ternary $name .Release.Name (eq .Release.Name "jig") | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "jig.selectorLabels" -}}
app.kubernetes.io/name: {{ default "jigd" .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "jig.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: jig
{{ include "jig.selectorLabels" . }}
{{- end -}}

{{/* The image of a dict with repository, tag and digest. */}}
{{- define "jig.image" -}}
{{- $image := .image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "jig.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "jig.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The configuration file: addresses and files of the pod, the text of the user, and the workspaces. */}}
{{- define "jig.config" -}}
{{- $standalone := eq .Values.mode "standalone" -}}
{{- if $standalone -}}
listen = ["0.0.0.0:50051", "unix:/run/jig/jig.sock"]
{{- if .Values.tls.secretName }}
tls_cert = "/etc/jigd/tls/tls.crt"
tls_key = "/etc/jigd/tls/tls.key"
{{- with .Values.tls.clientCaKey }}
tls_client_ca = "/etc/jigd/tls/{{ . }}"
{{- end }}
{{- else }}
allow_plaintext = true
{{- end }}
keys = "/etc/jigd/keys/keys.toml"
{{- else -}}
listen = ["unix:/run/jig/jig.sock"]
{{- end }}
health_listen = "0.0.0.0:50052"
state_dir = "/var/lib/jig/state"
log = "json"
{{- if $standalone }}
shutdown_delay = "{{ .Values.shutdown.delaySeconds }}s"
{{- end }}
drain_timeout = "{{ .Values.shutdown.drainSeconds }}s"
{{- with .Values.config }}
{{ . | trim }}
{{- end }}
{{- $several := gt (len .Values.workspaces) 1 }}
{{- range $workspace := .Values.workspaces }}

[[workspaces]]
name = {{ $workspace.name | quote }}
path = {{ ternary (printf "/workspaces/%s" $workspace.name) "/workspace" $several | quote }}
{{- range $key := list "mount_path" "symlinks" "home" "run_timeout" }}
{{- with get $workspace $key }}
{{ $key }} = {{ . | quote }}
{{- end }}
{{- end }}
{{- if hasKey $workspace "protected" }}
protected = {{ $workspace.protected | toJson }}
{{- end }}
{{- end }}
{{- with .Values.fleet }}
{{- if .enabled }}

[fleet]
nats = {{ .nats | toJson }}
replicas = {{ .replicas }}
{{- range $setting, $key := dict "signing_key_file" .signingKeyKey "credentials_file" .credentialsKey "ca_file" .caKey }}
{{- with $key }}
{{ $setting }} = "/etc/jigd/fleet/{{ . }}"
{{- end }}
{{- end }}
{{- range .queues }}

[[fleet.queues]]
{{- range $setting, $value := . }}
{{ $setting }} = {{ $value | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The digest of what a running daemon cannot read again. SIGHUP applies [policy] and [approvals]. */}}
{{- define "jig.configDigest" -}}
{{- $config := include "jig.config" . | fromToml -}}
{{- if hasKey $config "Error" -}}
{{- fail (printf "config: not valid TOML beside the keys of the chart: %s" $config.Error) -}}
{{- end -}}
{{- omit $config "policy" "approvals" | toJson | sha256sum -}}
{{- end -}}

{{- define "jig.minimumLevel" -}}
{{- get (dict "hardened" "L3" "restricted-seccomp" "L2" "restricted" "L1" "baseline" "L2" "gvisor" "L3" "kata" "L2") .Values.isolation.variant -}}
{{- end -}}

{{/* Fields of the pod. */}}
{{- define "jig.sidecar.podFields" -}}
{{- $variant := .Values.isolation.variant -}}
automountServiceAccountToken: false
enableServiceLinks: false
shareProcessNamespace: false
{{- if eq $variant "hardened" }}
hostUsers: false
{{- end }}
{{- with default (ternary $variant "" (has $variant (list "gvisor" "kata"))) .Values.isolation.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
# The shutdown, the time between SIGTERM and SIGKILL of commands (2 s), and time to write.
terminationGracePeriodSeconds: {{ add .Values.shutdown.delaySeconds .Values.shutdown.drainSeconds 15 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  {{- if eq .Values.mode "standalone" }}
  # Volumes and secrets become accessible for the group of the daemon.
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
{{- end -}}

{{/* The security context of containers that only copy files. */}}
{{- define "jig.copySecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* The security context of the daemon's container. */}}
{{- define "jig.securityContext" -}}
{{- $isolation := .Values.isolation -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- if eq $isolation.variant "hardened" }}
procMount: Unmasked
{{- end }}
{{- if has $isolation.variant (list "hardened" "restricted-seccomp") }}
seccompProfile: {type: Localhost, localhostProfile: {{ $isolation.seccompProfile }}}
{{- else if has $isolation.variant (list "restricted" "gvisor") }}
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- with $isolation.appArmorProfile }}
appArmorProfile: {type: Localhost, localhostProfile: {{ . }}}
{{- end }}
{{- end -}}

{{/* Containers that prepare the volumes. */}}
{{- define "jig.prepare" -}}
{{- if .Values.installer.enabled -}}
- name: install-jig
  image: {{ include "jig.image" (dict "image" .Values.installer "root" .) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [/jig-bin/]
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {cpu: 500m, memory: 128Mi}
  securityContext: {{- include "jig.copySecurityContext" . | nindent 4 }}
  volumeMounts:
    - {name: jig-bin, mountPath: /jig-bin}
{{ end -}}
{{- $directories := list -}}
{{- range .Values.workspaces -}}
{{- $directories = append $directories (printf "/volume/%s" (ternary .name "workspace" (gt (len $.Values.workspaces) 1))) -}}
{{- end -}}
# The root of a volume belongs to root. Git rejects a repository of another user, and commands cannot
# change modes below a directory with setgid.
- name: workspace
  image: {{ include "jig.image" (dict "image" .Values.image "root" .) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- if eq .Values.mode "standalone" }}
  command: [sh, -c, {{ printf "mkdir -p %s && chmod g-s %s" (join " " $directories) (join " " $directories) | quote }}]
  {{- else }}
  command: {{ concat (list "mkdir" "-p") $directories | toJson }}
  {{- end }}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {cpu: 100m, memory: 32Mi}
  securityContext: {{- include "jig.copySecurityContext" . | nindent 4 }}
  volumeMounts:
    - {name: workspace, mountPath: /volume}
{{- end -}}

{{/* Mounts of the workspaces. */}}
{{- define "jig.workspaceMounts" -}}
{{- range .Values.workspaces }}
{{- if gt (len $.Values.workspaces) 1 }}
- {name: workspace, mountPath: /workspaces/{{ .name }}, subPath: {{ .name }}}
{{- else }}
- {name: workspace, mountPath: /workspace, subPath: workspace}
{{- end }}
{{- end }}
{{- end -}}

{{/* The daemon's container. */}}
{{- define "jig.container" -}}
{{- $standalone := eq .Values.mode "standalone" -}}
{{- $config := ternary "/etc/jigd/config" "/etc/jigd" $standalone -}}
- name: jigd
  image: {{ include "jig.image" (dict "image" .Values.image "root" .) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- if not $standalone }}
  # It serves before the agent starts, and until the agent has ended.
  restartPolicy: Always
  {{- end }}
  command: [{{ ternary "/jig-bin/jigd" "/usr/local/bin/jigd" .Values.installer.enabled }}, --config, {{ $config }}/jigd.toml]
  env:
    - {name: JIG_MINIMUM_LEVEL, value: {{ include "jig.minimumLevel" . }}}
    {{- if .Values.metrics.enabled }}
    - {name: JIG_METRICS_LISTEN, value: "0.0.0.0:9464"}
    {{- end }}
    - {name: JIG_ADDRESS, value: "unix:/run/jig/jig.sock"}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - name: OTEL_RESOURCE_ATTRIBUTES
      value: k8s.namespace.name=$(POD_NAMESPACE),k8s.pod.name=$(POD_NAME),k8s.pod.uid=$(POD_UID),k8s.node.name=$(NODE_NAME),k8s.container.name=jigd
    {{- with .Values.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    {{- if $standalone }}
    - {name: grpc, containerPort: 50051}
    {{- end }}
    - {name: health, containerPort: 50052}
    {{- if .Values.metrics.enabled }}
    - {name: metrics, containerPort: 9464}
    {{- end }}
  startupProbe:
    # The agent starts when commands run at the level of the variant.
    grpc: {port: 50052, service: {{ ternary "liveness" "readiness" $standalone }}}
    periodSeconds: 1
    failureThreshold: 60
  # Not ready while commands do not run at the level of the variant.
  readinessProbe:
    grpc: {port: 50052, service: readiness}
    periodSeconds: 5
  livenessProbe:
    grpc: {port: 50052, service: liveness}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  resources: {{- toYaml .Values.resources | nindent 4 }}
  securityContext: {{- include "jig.securityContext" . | nindent 4 }}
  volumeMounts:
    {{- include "jig.workspaceMounts" . | trim | nindent 4 }}
    - {name: state, mountPath: /var/lib/jig}
    - {name: socket, mountPath: /run/jig}
    - {name: tmp, mountPath: /tmp}
    - {name: config, mountPath: {{ $config }}, readOnly: true}
    {{- if $standalone }}
    - {name: keys, mountPath: /etc/jigd/keys, readOnly: true}
    {{- if .Values.tls.secretName }}
    - {name: tls, mountPath: /etc/jigd/tls, readOnly: true}
    {{- end }}
    {{- if .Values.fleet.enabled }}
    - {name: fleet, mountPath: /etc/jigd/fleet, readOnly: true}
    {{- end }}
    {{- end }}
    {{- if .Values.installer.enabled }}
    - {name: jig-bin, mountPath: /jig-bin, readOnly: true}
    {{- end }}
    {{- with .Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Volumes of the pod. */}}
{{- define "jig.sidecar.volumes" -}}
{{- $standalone := eq .Values.mode "standalone" -}}
{{- if not (and $standalone .Values.persistence.enabled (eq .Values.workload "StatefulSet")) -}}
- name: workspace
  emptyDir: {sizeLimit: {{ .Values.persistence.workspaceSize }}}
- name: state
  emptyDir: {sizeLimit: {{ .Values.persistence.stateSize }}}
{{ end -}}
- name: socket
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: 64Mi}
- name: config
  configMap: {name: {{ include "jig.fullname" . }}}
{{- if $standalone }}
- name: keys
  secret: {secretName: {{ .Values.keys.secretName }}, defaultMode: 0440}
{{- if .Values.tls.secretName }}
- name: tls
  secret: {secretName: {{ .Values.tls.secretName }}, defaultMode: 0440}
{{- end }}
{{- if .Values.fleet.enabled }}
- name: fleet
  secret: {secretName: {{ .Values.fleet.secretName }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- if .Values.installer.enabled }}
- name: jig-bin
  emptyDir: {sizeLimit: 256Mi}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Init containers of the agent's pod: the daemon is one, because it is a sidecar of Kubernetes. */}}
{{- define "jig.sidecar.initContainers" -}}
{{ include "jig.prepare" . }}
{{ include "jig.container" . }}
{{- end -}}

{{/* Environment and mounts of the agent's container. */}}
{{- define "jig.sidecar.agentEnv" -}}
- {name: JIG_ADDRESS, value: "unix:/run/jig/jig.sock"}
{{- end -}}

{{- define "jig.sidecar.agentVolumeMounts" -}}
{{ include "jig.workspaceMounts" . | trim }}
# Read-only: the agent can connect, and cannot replace the socket.
- {name: socket, mountPath: /run/jig, readOnly: true}
{{- end -}}
