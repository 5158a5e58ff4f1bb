"""From pydantic's JSON schema to the structural OpenAPI schema that a CRD may hold. Pure.

Both say the same; the differences are Kubernetes' rules: no `$ref`, no `null` alternative, no `additionalProperties: false`
(the apiserver prunes instead), one type per node but for int-or-string, defaults only where they add something.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from blockwarden_operator.errors import SchemaError

Schema = dict[str, Any]

_NULL: Final = {"type": "null"}
_KEPT: Final = (
    "type",
    "format",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
)
_HANDLED: Final = frozenset(
    ("title", "description", "default", "properties", "items", "additionalProperties", "anyOf", "$ref", "$defs", "const")
)
_EXTENSION: Final = "x-kubernetes-"


def structural_schema(model: type[BaseModel]) -> Schema:
    """The structural schema of a model, every reference in place.

    Raises:
        SchemaError: the model uses what a structural schema cannot say.
    """
    document = model.model_json_schema(by_alias=True)
    return _convert(document, document.get("$defs", {}))


def _convert(node: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    node = _resolve(node, definitions)
    _refuse_unknown(node)
    schema: Schema = {}
    if "description" in node:
        schema["description"] = " ".join(str(node["description"]).split())
    if (default := _default(node)) is not None:
        schema["default"] = default
    schema |= {key: node[key] for key in _KEPT if key in node}
    if "const" in node:
        schema["enum"] = [node["const"]]
    if "anyOf" in node:
        schema |= _int_or_string([_resolve(choice, definitions) for choice in node["anyOf"]])
    schema |= {key: value for key, value in node.items() if key.startswith(_EXTENSION)}
    return schema | _children(node, definitions)


def _children(node: Schema, definitions: Mapping[str, Schema]) -> Schema:
    children: Schema = {
        key: _convert(node[key], definitions) for key in ("items", "additionalProperties") if isinstance(node.get(key), Mapping)
    }
    if "properties" in node:
        children["properties"] = {name: _convert(child, definitions) for name, child in node["properties"].items()}
    return children


def _refuse_unknown(node: Schema) -> None:
    unknown = {key for key in node if key not in _HANDLED and key not in _KEPT and not key.startswith(_EXTENSION)}
    if unknown:
        raise SchemaError(f"a structural schema cannot say {', '.join(sorted(unknown))}: model it otherwise")


def _resolve(node: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """The node with its reference and its optionality in place; what stands beside a reference wins over the definition."""
    resolved = dict(node)
    while True:
        if (reference := resolved.pop("$ref", None)) is not None:
            resolved = definitions[reference.removeprefix("#/$defs/")] | resolved
        elif _NULL in resolved.get("anyOf", ()):
            choices = [choice for choice in resolved.pop("anyOf") if choice != _NULL]
            resolved = (dict(choices[0]) if len(choices) == 1 else {"anyOf": choices}) | resolved
        else:
            return resolved


def _default(node: Mapping[str, Any]) -> Any:
    """The default to state: an object's is `{}`, because those of its fields fill it; absent and empty lists are one."""
    default = node.get("default")
    if node.get("type") == "object":
        return {} if default is not None else None
    return None if default in (None, [], ()) else default


def _int_or_string(choices: list[Schema]) -> Schema:
    if {choice.get("type") for choice in choices} != {"integer", "string"}:
        raise SchemaError("a structural schema knows no choice but integer or string: model it otherwise")
    limits = {key: value for choice in choices for key, value in choice.items() if key in _KEPT and key != "type"}
    return {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True, **limits}
