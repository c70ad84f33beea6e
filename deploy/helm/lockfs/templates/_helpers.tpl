{{/* lockfs.image: the image of lockfs. */}}
{{- define "lockfs.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* lockfs.labels: what every object gets. */}}
{{- define "lockfs.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- with .Values.extraLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* lockfs.emit: an object with its namespace and labels. Takes root, object and optionally namespace; a namespace of "-"
is that of an object of the cluster. */}}
{{- define "lockfs.emit" -}}
{{- $o := .object }}
{{- $ns := .namespace | default .root.Release.Namespace }}
{{- if has $o.kind (list "ClusterRole" "ClusterRoleBinding" "CSIDriver" "StorageClass") }}
{{- $_ := unset $o.metadata "namespace" }}
{{- else }}
{{- $_ := set $o.metadata "namespace" $ns }}
{{- end }}
{{- $_ := set $o.metadata "labels" (merge (include "lockfs.labels" .root | fromYaml) ($o.metadata.labels | default dict)) }}
{{- if has $o.kind (list "ClusterRoleBinding" "RoleBinding") }}
{{- range $o.subjects }}{{ $_ := set . "namespace" $.root.Release.Namespace }}{{ end }}
{{- end }}
{{- if has $o.kind (list "DaemonSet" "Deployment" "StatefulSet") }}
{{- $t := $o.spec.template }}
{{- $_ := set $t.metadata "labels" (merge (dict) ($t.metadata.labels) (.root.Values.extraLabels)) }}
{{- with .root.Values.imagePullSecrets }}{{ $_ := set $t.spec "imagePullSecrets" . }}{{ end }}
{{- range $t.spec.containers }}
{{- if hasPrefix "ghcr.io/lockfs/lockfs:" .image }}
{{- $_ := set . "image" (include "lockfs.image" $.root) }}
{{- $_ := set . "imagePullPolicy" $.root.Values.image.pullPolicy }}
{{- end }}
{{- end }}
{{- end }}
---
{{ toYaml $o }}
{{- end }}

{{/* lockfs.place: where pods run. Takes pod and values. */}}
{{- define "lockfs.place" -}}
{{- with .values.nodeSelector }}{{ $_ := set $.pod "nodeSelector" . }}{{ end }}
{{- with .values.affinity }}{{ $_ := set $.pod "affinity" . }}{{ end }}
{{- if not (kindIs "invalid" .values.tolerations) }}{{ $_ := set $.pod "tolerations" .values.tolerations }}{{ end }}
{{- with .values.priorityClassName }}{{ $_ := set $.pod "priorityClassName" . }}{{ end }}
{{- end }}

{{/* lockfs.directories: the nodes' directories in a pod. Takes root and pod. */}}
{{- define "lockfs.directories" -}}
{{- $d := .root.Values.directories }}
{{- $from := dict "views" $d.views "run" $d.state "kubelet" $d.kubelet "csi" (printf "%s/plugins/lockfs.io" $d.kubelet) "registration" (printf "%s/plugins_registry" $d.kubelet) }}
{{- range .pod.volumes }}
{{- if and .hostPath (hasKey $from .name) }}{{ $_ := set .hostPath "path" (get $from .name) }}{{ end }}
{{- end }}
{{- $to := dict "views" $d.views "run" $d.state "kubelet" $d.kubelet }}
{{- range .pod.containers }}
{{- range .volumeMounts }}
{{- if hasKey $to .name }}{{ $_ := set . "mountPath" (get $to .name) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
