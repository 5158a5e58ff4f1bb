"""Whether an object in the cluster is what the plan wants: the reason why a second reconcile writes nothing. Pure.

Three questions, because server-side apply alone answers none of them without a write:
1. Does the live object have every value we want? (`has_drifted`; the apiserver's defaults beside them do not count.)
2. Does it still have fields that we no longer want? Ours are known by a hash of the *shape* applied last, kept in an annotation;
   a shape holds paths and no values, so nothing of a Secret gets into it.
3. Did somebody else add fields (a container, `hostNetwork`, a data key)? `managedFields` says whose they are; taking them over
   makes the next apply remove them (`adopt_foreign_fields`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from .render.names import FIELD_MANAGER, GROUP, Manifest

SHAPE_ANNOTATION: Final = f"{GROUP}/applied-shape"
_QUANTITY_PARENTS: Final = frozenset({"limits", "requests"})
_QUANTITY_FIELDS: Final = frozenset({"sizeLimit"})
_SUFFIXES: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
}
_RESTARTED_AT: Final = "f:kubectl.kubernetes.io/restartedAt"
_LEFT_TO_OTHERS: Final = (
    ("f:metadata",),
    ("f:status",),
    ("f:spec", "f:template", "f:metadata", "f:annotations", _RESTARTED_AT),
)
"""Other managers may label and annotate the object, and `kubectl rollout restart` annotates the pod template. No other annotation
of pods is anybody else's: one of them adds a network interface that no NetworkPolicy confines."""


def with_shape(desired: Manifest) -> Manifest:
    """The manifest to apply: `desired` with the annotation that remembers its shape."""
    shape = hashlib.sha256(json.dumps(sorted(set(_paths(desired, ""))), separators=(",", ":")).encode()).hexdigest()[:20]
    metadata = desired["metadata"]
    annotations = {**metadata.get("annotations", {}), SHAPE_ANNOTATION: shape}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def has_drifted(desired: Manifest, live: Manifest) -> bool:
    """Whether `live` lacks a value of `desired`; both are whole manifests, `desired` as `with_shape` made it."""
    return not _covers(live, desired, parent="", name="")


def _covers(live: Any, want: Any, *, parent: str, name: str) -> bool:
    if isinstance(want, dict):
        if live is None and not any(_is_something(value) for value in want.values()):
            return True
        return isinstance(live, dict) and all(_covers(live.get(key), value, parent=name, name=key) for key, value in want.items())
    if isinstance(want, list) and isinstance(live, list):
        pairs = zip(live, want, strict=False)
        return len(live) == len(want) and all(_covers(has, item, parent=parent, name=name) for has, item in pairs)
    if live == want or (live is None and not _is_something(want)):
        return True
    is_quantity = parent in _QUANTITY_PARENTS or name in _QUANTITY_FIELDS
    return is_quantity and live is not None and _quantity(live) == _quantity(want) is not None


def _is_something(value: Any) -> bool:
    """Whether the apiserver keeps a value: false, 0, "" and empty containers may be left out of what it returns."""
    if isinstance(value, dict):
        return any(_is_something(item) for item in value.values())
    return bool(value)


def _quantity(text: Any) -> Decimal | None:
    """A resource quantity as a number; the apiserver rewrites 1000m as 1."""
    digits = str(text)
    suffix = next((end for end in sorted(_SUFFIXES, key=len, reverse=True) if digits.endswith(end)), "")
    try:
        return Decimal(digits.removesuffix(suffix)) * _SUFFIXES.get(suffix, Decimal(1))
    except InvalidOperation:
        return None


def _paths(value: Any, path: str) -> Iterator[str]:
    """The path of every leaf; list items are told apart by their name where they have one."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _paths(item, f"{path}/{key}")
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            label = item.get("name", index) if isinstance(item, dict) else index
            yield from _paths(item, f"{path}/{label}")
    else:
        yield path


def adopt_foreign_fields(live: Manifest) -> list[dict[str, Any]] | None:
    """`metadata.managedFields` with the fields of strangers under our own name; None when no stranger owns anything that matters.

    Subresources (status, scale) are their controllers' business. Metadata stays with whoever wrote it.
    """
    entries: list[dict[str, Any]] = live.get("metadata", {}).get("managedFields") or []
    ours = next((entry for entry in entries if _is_ours(entry)), None)
    if ours is None:
        return None
    adopted: dict[str, Any] = dict(ours.get("fieldsV1") or {})
    kept: list[dict[str, Any]] = []
    found = False
    for entry in entries:
        if entry is ours:
            continue
        fields = entry.get("fieldsV1") or {}
        # What admission webhooks add to our own writes is recorded under our name as an Update: not a stranger's.
        ignored = entry.get("subresource") or entry.get("manager") == FIELD_MANAGER
        foreign = {} if ignored else _without(fields, ())
        if foreign and entry.get("apiVersion") == ours.get("apiVersion"):
            found = True
            adopted = _merge(adopted, foreign)
            fields = _only_left(fields)
        if fields:
            kept.append({**entry, "fieldsV1": fields})
    return [{**ours, "fieldsV1": adopted}, *kept] if found else None


def _is_ours(entry: dict[str, Any]) -> bool:
    return entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource")


def _without(fields: dict[str, Any], at: tuple[str, ...]) -> dict[str, Any]:
    """`fields` less what is left to others; a container whose fields are all theirs is theirs too."""
    rest: dict[str, Any] = {}
    for key, value in fields.items():
        path = (*at, key)
        if path in _LEFT_TO_OTHERS:
            continue
        inner = _without(value, path)
        if inner or not value:
            rest[key] = inner
    return {} if rest.keys() == {"."} else rest


def _only_left(fields: dict[str, Any]) -> dict[str, Any]:
    """The part of `fields` that is left to others."""
    left: dict[str, Any] = {}
    for path in _LEFT_TO_OTHERS:
        value: Any = fields
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            target = left
            for key in path[:-1]:
                target = target.setdefault(key, {})
            target[path[-1]] = value
    return left


def _merge(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    """The union of two field sets."""
    merged = dict(one)
    for key, value in two.items():
        present = merged.get(key)
        merged[key] = _merge(present, value) if isinstance(present, dict) and isinstance(value, dict) else value
    return merged
