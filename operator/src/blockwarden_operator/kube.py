"""The only Kubernetes client: `kubernetes.aio`'s dynamic client over a closed table of resources.

The table needs no discovery and is what `rbac.py` grants. Writes are server-side applies, forced, under one field manager. Errors
are turned into ours here: the client's own quote headers and bodies, and a refusal of a Secret would print it.
"""

# The client ships py.typed but leaves most of its functions without types.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic import DynamicClient, Resource

from .errors import ClusterError, Gone, MissingCRD, Refused
from .render.names import FIELD_MANAGER, GROUP, KIND, PLURAL, VERSION, Manifest
from .resources import ALL_KINDS

TIMEOUT_SECONDS: Final = 20.0
_NOT_FOUND: Final = 404
_REFUSALS: Final = frozenset({400, 403, 422})


class Kube:
    """Reads and writes of the operator, each one call to the apiserver."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._client = DynamicClient(api)

    async def __aenter__(self) -> Kube:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.close()

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The object, or None where there is none."""
        try:
            return await self._call("get", _path(kind, namespace, name))
        except Gone:
            return None

    async def select(self, kind: str, namespace: str, *, selector: str) -> list[Manifest]:
        """The objects that a label selector selects."""
        answer = await self._call("get", _path(kind, namespace), label_selector=selector)
        # The items of a list say neither kind nor apiVersion; here every manifest does.
        identity = {"apiVersion": answer["apiVersion"], "kind": kind}
        return [{**item, **identity} for item in answer.get("items") or []]

    async def apply(self, manifest: Manifest, *, trial: bool = False) -> Manifest:
        """Server-side apply; fields that other managers hold are taken from them. A trial changes nothing.

        Raises:
            Refused: the apiserver does not take the object.
        """
        metadata = manifest["metadata"]
        path = _path(manifest["kind"], metadata["namespace"], metadata["name"])
        return await self._apply(path, manifest, **({"dry_run": "All"} if trial else {}))

    async def apply_status(self, policy: Manifest, status: Mapping[str, Any]) -> Manifest:
        """Server-side apply of the whole status of the TenantPolicy that was read (and of none that took its name since)."""
        metadata = {field: policy["metadata"][field] for field in ("name", "namespace", "uid")}
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, "status": dict(status)}
        return await self._apply(_path(KIND, metadata["namespace"], metadata["name"]) + "/status", body)

    async def set_managed_fields(self, live: Manifest, entries: list[dict[str, Any]]) -> None:
        """Replace `metadata.managedFields` of exactly the object that was read.

        Raises:
            ClusterError: it was written to meanwhile, or the call failed: read it anew.
        """
        metadata = live["metadata"]
        patch = [
            {"op": "replace", "path": "/metadata/managedFields", "value": entries},
            {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
        ]
        path = _path(live["kind"], metadata["namespace"], metadata["name"])
        try:
            await self._call("patch", path, body=patch, content_type="application/json-patch+json")
        except Refused as error:
            # The test above failed: nothing is wrong with the object itself.
            raise ClusterError(str(error)) from None

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str) -> None:
        """Delete exactly the object that was read; no error when it is gone."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._call("delete", _path(kind, namespace, name), body=body)
        except Gone:
            return

    async def create_event(self, manifest: Manifest) -> None:
        """Post a Kubernetes Event."""
        await self._call("post", _path("Event", manifest["metadata"]["namespace"]), body=manifest)

    async def check_crd(self, namespace: str | None) -> None:
        """Make sure that the cluster serves TenantPolicies (in a namespace, where the operator may list no others).

        Raises:
            MissingCRD: it does not.
        """
        try:
            await self._call("get", _path(KIND, namespace), limit=1)
        except Gone:
            raise MissingCRD(
                f"the cluster does not serve {PLURAL}.{GROUP}/{VERSION}: install the chart blockwarden-crds first"
            ) from None

    async def _apply(self, path: str, body: Manifest, **parameters: Any) -> Manifest:
        return await self._call(
            "patch",
            path,
            body=body,
            content_type="application/apply-patch+yaml",
            field_manager=FIELD_MANAGER,
            force_conflicts=True,
            **parameters,
        )

    async def _call(self, method: str, path: str, *, body: Any = None, **parameters: Any) -> Manifest:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                answer = await self._client.request(method, path, body=body, serialize=False, **parameters)
                found: Manifest = await answer.json()
                return found
        except ApiException as error:
            raise _failure(f"{method} {path}", error) from None
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ClusterError(f"{method} {path}: {type(error).__name__}: the apiserver did not answer") from None


async def connect(kubeconfig: str | None) -> Kube:
    """A client from a kubeconfig file, or from the pod's service account where none is given.

    Raises:
        ClusterError: neither can be used.
    """
    configuration = Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    except config.ConfigException as error:
        raise ClusterError(f"no access to a cluster: {error}") from None
    return Kube(ApiClient(configuration))


def _path(kind: str, namespace: str | None, name: str | None = None) -> str:
    found = ALL_KINDS[kind]
    resource = Resource(
        prefix="apis" if found.group else "api",
        group=found.group,
        api_version=found.version,
        kind=found.kind,
        namespaced=True,
        name=found.plural,
    )
    path: str = resource.path(name=name, namespace=namespace)
    return path


def _failure(call: str, error: ApiException) -> ClusterError:
    """Our error for the client's."""
    status = int(error.status or 0)
    reason, fields = _reason(error)
    message = f"{call}: {status} {reason}" + (f" ({', '.join(fields)})" if fields else "")
    if status in _REFUSALS:
        return Refused(message, status=status, reason=reason, fields=fields)
    return Gone(message) if status == _NOT_FOUND else ClusterError(message)


def _reason(error: ApiException) -> tuple[str, tuple[str, ...]]:
    """The machine-readable reason and the paths of the wrong fields: what helps, without the values that are quoted beside it."""
    try:
        status = json.loads(error.body or "")
        causes = (status.get("details") or {}).get("causes") or []
        fields = dict.fromkeys(str(cause["field"]) for cause in causes if cause.get("field"))
        return str(status.get("reason")), tuple(fields)
    except (ValueError, AttributeError):
        return str(error.reason), ()
