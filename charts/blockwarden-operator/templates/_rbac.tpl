{{/*
What the operator may do, in each namespace that it serves. A contract test compares these rules with those that
blockwarden_operator.rbac says the code needs: neither may hold one more than the other.
*/}}
{{- define "blockwarden-operator.rules" -}}
- apiGroups: [blockwarden.dev]
  resources: [tenantpolicies]
  verbs: [get, list, watch]
- apiGroups: [blockwarden.dev]
  resources: [tenantpolicies/status]
  verbs: [patch]
# For owner references that block deletion, where the admission plug-in OwnerReferencesPermissionEnforcement is on.
- apiGroups: [blockwarden.dev]
  resources: [tenantpolicies/finalizers]
  verbs: [update]
# Server-side apply is a patch, and creates what is missing.
- apiGroups: [""]
  resources: [configmaps, persistentvolumeclaims, secrets, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}
