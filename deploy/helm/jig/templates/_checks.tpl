{{/* Values that do not go together. values.schema.json checks each one alone. */}}
{{- define "jig.checks" -}}
{{- $standalone := eq .Values.mode "standalone" -}}
{{- if $standalone -}}
{{- if not .Values.keys.secretName -}}
{{- fail "keys.secretName: required, because other machines reach the daemon: kubectl create secret generic jigd-keys --from-file keys.toml" -}}
{{- end -}}
{{- if and (not .Values.tls.secretName) (not .Values.tls.allowPlaintext) -}}
{{- fail "tls.secretName: required, because other machines reach the daemon; or set tls.allowPlaintext, if a proxy or a mesh encrypts" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.tls.clientCaKey (not .Values.tls.secretName) -}}
{{- fail "tls.clientCaKey: needs tls.secretName" -}}
{{- end -}}
{{- if .Values.scaleOut.enabled -}}
{{- if or (not $standalone) (ne .Values.workload "StatefulSet") -}}
{{- fail "scaleOut.enabled: needs mode standalone and workload StatefulSet" -}}
{{- end -}}
{{- if not .Values.tls.secretName -}}
{{- fail "scaleOut.enabled: needs tls.secretName, because Envoy connects to the daemons by TLS" -}}
{{- end -}}
{{- end -}}
{{- if .Values.fleet.enabled -}}
{{- if not $standalone -}}
{{- fail "fleet.enabled: needs mode standalone" -}}
{{- end -}}
{{- if not .Values.fleet.nats -}}
{{- fail "fleet.nats: required: give the URLs of the NATS servers" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.egress) -}}
{{- fail "fleet.enabled: needs networkPolicy.egress with the NATS servers, and with the names of the cluster" -}}
{{- end -}}
{{- end -}}
{{- if .Values.autoscaling.enabled -}}
{{- if or (not $standalone) (ne .Values.workload "Deployment") -}}
{{- fail "autoscaling.enabled: needs mode standalone and workload Deployment, because each pod of a StatefulSet has files of its own" -}}
{{- end -}}
{{- end -}}
{{- if .Values.metrics.podMonitor.enabled -}}
{{- if not .Values.metrics.enabled -}}
{{- fail "metrics.podMonitor.enabled: needs metrics.enabled" -}}
{{- end -}}
{{- end -}}
{{- $names := dict -}}
{{- range .Values.workspaces -}}
{{- if hasKey $names .name -}}
{{- fail (printf "workspaces: the name %s is there twice" .name) -}}
{{- end -}}
{{- $_ := set $names .name true -}}
{{- end -}}
{{- end -}}
