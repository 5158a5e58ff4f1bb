{{- define "blockwarden.labels" -}}
app.kubernetes.io/name: blockwarden
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: blockwarden
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "blockwarden-%s" .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* "yes" where the API server already knows TenantPolicy when the release is rendered. */}}
{{- define "blockwarden.apiIsThere" -}}
{{- if .Capabilities.APIVersions.Has "blockwarden.dev/v1alpha1/TenantPolicy" }}yes{{ end -}}
{{- end -}}
