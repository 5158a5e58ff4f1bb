{{/* A label value; not .Chart.Name, which an umbrella chart changes by its alias. */}}
{{- define "blockwarden-operator.name" -}}
{{- default "blockwarden-operator" .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of the chart's objects: the release's name is left out where it would only repeat the chart's. */}}
{{- define "blockwarden-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "blockwarden-operator.name" . -}}
{{- if or (eq .Release.Name $name) (eq .Release.Name (trimSuffix "-operator" $name)) -}}
{{- $name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What selectors use: never the version, so that an upgrade keeps them. */}}
{{- define "blockwarden-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "blockwarden-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "blockwarden-operator.labels" -}}
{{ include "blockwarden-operator.selectorLabels" . }}
app.kubernetes.io/part-of: blockwarden
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "blockwarden-operator-%s" .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "blockwarden-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "blockwarden-operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is empty: name the service account to use, or set serviceAccount.create to true" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* An image reference from {image, chart}: the digest where there is one, else the tag, else the chart's appVersion. */}}
{{- define "blockwarden-operator.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* A map as key=value,key=value, in the order of its keys. */}}
{{- define "blockwarden-operator.pairs" -}}
{{- $pairs := list -}}
{{- range $key, $value := . -}}
{{- $pairs = append $pairs (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- join "," $pairs -}}
{{- end -}}

{{- define "blockwarden-operator.dnsLabels" -}}
{{- default (dict "k8s-app" "kube-dns") .Values.dns.labels | toYaml -}}
{{- end -}}
