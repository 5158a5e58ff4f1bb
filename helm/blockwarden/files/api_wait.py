"""Ends once the API server serves TenantPolicy. Runs in a pod, as the hook before a release's first TenantPolicies."""

import os
import ssl
import sys
import time
from http.client import HTTPException, HTTPSConnection
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def served() -> bool:
    """Whether the API's discovery document is there and names the resource."""
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"}
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    connection = HTTPSConnection(host, port, context=trust, timeout=5)
    try:
        connection.request("GET", "/apis/blockwarden.dev/v1alpha1", headers=headers)
        return b'"tenantpolicies"' in connection.getresponse().read()
    except (OSError, HTTPException) as error:
        sys.stderr.write(f"not yet: {error}\n")
        return False
    finally:
        connection.close()


while not served():
    time.sleep(1)
