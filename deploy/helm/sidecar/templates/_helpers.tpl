{{- define "sidecar.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (default .Chart.Name .Values.nameOverride) .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name (default .Chart.Name .Values.nameOverride) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "sidecar.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sidecar.labels" -}}
{{ include "sidecar.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "sidecar.serviceAccountName" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create }}{{ include "sidecar.fullname" . }}
{{- else }}default
{{- end }}
{{- end }}

{{- /* Contradictions that a schema cannot express. */}}
{{- define "sidecar.check" -}}
{{- $store := or .Values.storeUrl.secret (dig "store" "url" "" .Values.config) }}
{{- $many := or (gt (int .Values.replicaCount) 1) .Values.autoscaling.enabled }}
{{- if and $many (not $store) }}
{{- fail "several replicas count limits together in Redis or Valkey: set storeUrl.secret, or config.store.url" }}
{{- end }}
{{- $noticed := mul (int .Values.probes.readiness.periodSeconds) (int .Values.probes.readiness.failureThreshold) }}
{{- if and (eq .Values.mode "gateway") (lt (int .Values.drainDelaySeconds) (int $noticed)) }}
{{- fail (printf "drainDelaySeconds is shorter than the %d s that the readiness probe takes to notice: raise it" $noticed) }}
{{- end }}
{{- if and (eq .Values.mode "agent") (not (and .Values.agent.principal .Values.agent.image)) }}
{{- fail "mode agent needs agent.image and agent.principal, such as nhi:planner" }}
{{- end }}
{{- end }}

{{- /* sidecar.yaml: the chart's own part, under what config says. */}}
{{- define "sidecar.config" -}}
{{- $server := dict "shutdown_grace_s" .Values.shutdownGraceSeconds }}
{{- $own := dict "version" 1 "data" "/var/lib/sidecar" "server" $server "metrics" (dict "listen" "0.0.0.0:9091") }}
{{- if eq .Values.mode "gateway" }}
{{- $name := printf "%s.%s.svc" (include "sidecar.fullname" .) .Release.Namespace }}
{{- $_ := set $server "listen" "0.0.0.0:8080" }}
{{- $_ := set $server "public_url" (default (printf "https://%s:8080" $name) .Values.publicUrl) }}
{{- $_ := set $server "allowed_hosts" (list (include "sidecar.fullname" .) (printf "%s:8080" (include "sidecar.fullname" .)) (printf "%s:8080" $name)) }}
{{- $_ := set $server "drain_delay_s" .Values.drainDelaySeconds }}
{{- if .Values.tls.secret }}
{{- $_ := set $server "tls" (dict "cert_path" "tls/tls.crt" "key_path" "tls/tls.key") }}
{{- else }}
{{- $_ := set $server "tls" "external" }}
{{- end }}
{{- if .Values.grpc.enabled }}{{ $_ := set $server "grpc" "0.0.0.0:8081" }}{{ end }}
{{- else }}
{{- $_ := set $own "local" (list (dict "listen" "127.0.0.1:8070" "principal" .Values.agent.principal)) }}
{{- end }}
{{- /* Without a file under models/, the models are those that come with the sidecar. */}}
{{- $models := false }}
{{- range $path, $_ := .Values.files }}{{ if hasPrefix "models/" $path }}{{ $models = true }}{{ end }}{{ end }}
{{- if not (or $models (dig "policy" "source" false .Values.config)) }}
{{- $_ := set $own "policy" (dict "models" dict) }}
{{- end }}
{{- mustMergeOverwrite $own (deepCopy .Values.config) | toYaml }}
{{- end }}

{{- /* The container of the sidecar, in both modes. */}}
{{- define "sidecar.container" -}}
name: sidecar
image: "{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ end }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [serve, -c, /etc/sidecar/sidecar.yaml]
{{- if or .Values.storeUrl.secret .Values.env }}
env:
  {{- with .Values.storeUrl.secret }}
  - name: SIDECAR_STORE__URL
    valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.storeUrl.key }}}}
  {{- end }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- with .Values.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  {{- if eq .Values.mode "gateway" }}
  - {name: http, containerPort: 8080}
  {{- if .Values.grpc.enabled }}
  - {name: grpc, containerPort: 8081}
  {{- end }}
  {{- end }}
  - {name: metrics, containerPort: 9091}
startupProbe:
  httpGet: {path: /readyz, port: metrics}
  {{- toYaml .Values.probes.startup | nindent 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  {{- toYaml .Values.probes.readiness | nindent 2 }}
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  {{- toYaml .Values.probes.liveness | nindent 2 }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
volumeMounts:
  - {name: config, mountPath: /etc/sidecar, readOnly: true}
  - {name: data, mountPath: /var/lib/sidecar}
  - {name: tmp, mountPath: /tmp}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "sidecar.pod" -}}
metadata:
  labels:
    {{- include "sidecar.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ include "sidecar.config" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "sidecar.serviceAccountName" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  # After both, the rest of the shutdown takes less than 10 s.
  terminationGracePeriodSeconds: {{ add .Values.drainDelaySeconds .Values.shutdownGraceSeconds 15 }}
  securityContext:
    runAsNonRoot: true
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch # otherwise a mount opens the key files to the group
    seccompProfile: {type: RuntimeDefault}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- if eq .Values.mode "agent" }}
  initContainers:
    - restartPolicy: Always
      {{- include "sidecar.container" . | nindent 6 }}
  containers:
    - name: {{ .Values.agent.name }}
      image: {{ .Values.agent.image | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- range $key := list "command" "args" "env" "ports" "resources" "volumeMounts" "securityContext" }}
      {{- with index $.Values.agent $key }}
      {{ $key }}:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- end }}
  {{- else }}
  containers:
    - {{ include "sidecar.container" . | nindent 6 | trim }}
  {{- end }}
  volumes:
    - name: config
      projected:
        defaultMode: 0440
        sources:
          - configMap:
              name: {{ include "sidecar.fullname" . }}
              items:
                - {key: sidecar.yaml, path: sidecar.yaml}
                {{- range $path := keys .Values.files | sortAlpha }}
                - {key: {{ $path | replace "/" "__" }}, path: {{ $path }}}
                {{- end }}
          {{- range .Values.secrets }}
          - secret:
              name: {{ .name }}
              items:
                {{- range $key, $path := .items }}
                - {key: {{ $key }}, path: {{ $path }}}
                {{- end }}
          {{- end }}
          {{- if and .Values.tls.secret (eq .Values.mode "gateway") }}
          - secret:
              name: {{ .Values.tls.secret }}
              items:
                - {key: tls.crt, path: tls/tls.crt}
                - {key: tls.key, path: tls/tls.key}
          {{- end }}
    - {name: tmp, emptyDir: {}}
    {{- if not .Values.persistence.enabled }}
    - {name: data, emptyDir: {}}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
  {{- with index $.Values $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end }}

