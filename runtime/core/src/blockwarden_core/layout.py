"""Ports, headers and mounted files: the places where operator, gateway and engine meet.

A file's path is always `<root>/<relative>`; the root is ROOT in a pod and any directory in a test (environment
variable ROOT_ENV, read by the shells, never here).
"""

from __future__ import annotations

from typing import Final

GATEWAY_PUBLIC_PORT: Final = 8080
GATEWAY_PUBLIC_TLS_PORT: Final = 8443
GATEWAY_INTERNAL_PORT: Final = 9090
ENGINE_API_PORT: Final = 8000
ENGINE_INTERNAL_PORT: Final = 9400
ENGINE_KV_EVENTS_PORT: Final = 5557

ROOT: Final = "/etc/blockwarden"
ROOT_ENV: Final = "BLOCKWARDEN_ROOT"
POD_UID_ENV: Final = "BLOCKWARDEN_POD_UID"
POLICY_UID_ENV: Final = "BLOCKWARDEN_POLICY_UID"

GATEWAY_POLICY: Final = "policy/gateway.json"  # ConfigMap, gateway only
ENGINE_POLICY: Final = "policy/engine.json"  # ConfigMap, engine only, sealed under the engine key
SALT_KEYRING: Final = "salt/keyring.json"  # Secret, gateway only
ENGINE_KEYS: Final = "engine-key/keys.json"  # Secret, gateway and engine
API_KEYS: Final = "api-keys/digests.json"  # Secret, gateway only
CLIENT_TLS: Final = "tls/client"  # Secret, gateway only: clientAuth towards the engine
INTERNAL_TLS: Final = "tls/internal"  # Secret, gateway only: serves GATEWAY_INTERNAL_PORT
SERVER_TLS: Final = "tls/server"  # Secret, engine only: serves ENGINE_API_PORT and ENGINE_INTERNAL_PORT
PUBLIC_TLS: Final = "tls/public"  # Secret named by spec.gateway.tls.secretName, gateway only
TLS_CERT: Final = "tls.crt"
TLS_KEY: Final = "tls.key"
TLS_CA: Final = "ca.crt"

ATTESTATION_PATH: Final = "/blockwarden/v1/attestation"  # engine API port, mutual TLS
LIVEZ_PATH: Final = "/livez"  # internal ports
READYZ_PATH: Final = "/readyz"
METRICS_PATH: Final = "/metrics"
STATUS_PATH: Final = "/status"

BOOT_HEADER: Final = "x-blockwarden-boot"
"""Set by the engine on every response, and by the gateway on every request to the nonce that it attested; an engine that
started again since answers 421 instead of serving a request that was meant for the process before it."""
SCOPE_HEADER: Final = "x-blockwarden-scope"
SESSION_HEADER: Final = "x-blockwarden-session"
REQUEST_ID_HEADER: Final = "x-request-id"
