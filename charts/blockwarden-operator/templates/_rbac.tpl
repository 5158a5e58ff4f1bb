{{/*
What the operator may do, in each namespace that it serves. A contract test compares these rules with those that
blockwarden_operator.rbac says the code needs: neither may hold one more than the other.
*/}}
{{- define "blockwarden-operator.rules" -}}
- apiGroups: [blockwarden.dev]
  resources: [tenantpolicies]
  verbs: [get, list, watch]
{{- end -}}
