"""What a Python source says: a fingerprint for the gate, and the headers of its members for whoever reviews another version.

The fingerprint is over the text of a module, class or function, so nothing in it can change unnoticed. The members (functions,
methods, annotated fields, each with a fingerprint of its own) say what did change. Pure: reads text, imports nothing of vLLM.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

Read = Callable[[str], str | None]
"""A module's dotted name within the package vllm -> its text; None where there is no such module."""


@dataclass(frozen=True)
class Source:
    """One module, class or function.

    Attributes:
        fingerprint: 16 hexadecimal digits over its text; empty where it is gone.
        members: qualified name -> (header, fingerprint) of what is inside; of a function, its own.
    """

    fingerprint: str
    members: Mapping[str, tuple[str, str]]


GONE: Final = Source("", {})
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def digest(text: str) -> str:
    """16 hexadecimal digits that change with the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_fingerprints(targets: Iterable[str], read: Read) -> dict[str, str]:
    """The fingerprint of each target, empty for one that is gone."""
    found = {}
    for module, qualnames in _by_module(targets):
        text = read(module)
        tree = ast.parse(text) if text is not None and any(qualnames) else None  # one at a time: they take tens of megabytes
        for qualname in qualnames:
            found[_join(module, qualname)] = _fingerprint(text, tree, qualname)
    return found


def read_sources(targets: Iterable[str], read: Read) -> dict[str, Source]:
    """Each target with its members.

    Args:
        targets: `module` or `module:qualified name`.
        read: where the modules are.
    """
    found = {}
    for module, qualnames in _by_module(targets):
        text = read(module)
        tree = ast.parse(text or "")
        for qualname in qualnames:
            fingerprint = _fingerprint(text, tree, qualname)
            members = _describe(text or "", _find(tree, qualname)) if fingerprint else {}
            found[_join(module, qualname)] = Source(fingerprint, members)
    return found


def describe_changes(old: Mapping[str, Source], new: Mapping[str, Source]) -> list[str]:
    """What changed from `old` to `new`, a line each: `-` is gone, `+` is new, `!` has another header, `~` another body."""
    lines = []
    for target in old.keys() | new.keys():
        before, after = old.get(target, GONE), new.get(target, GONE)
        if before.fingerprint == after.fingerprint:
            continue
        if not before.fingerprint or not after.fingerprint:
            lines.append((target, f"{'+' if after.fingerprint else '-'} {target}"))
            continue
        changed = list(_member_changes(before.members, after.members)) or ["  ~ statements outside of its functions and fields"]
        lines.append((target, "\n".join([f"~ {target}", *changed])))
    return [text for _, text in sorted(lines)]


def _member_changes(old: Mapping[str, tuple[str, str]], new: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            yield f"  - {name}: {_line(old[name][0])}"
        elif name not in old:
            yield f"  + {name}: {_line(new[name][0])}"
        elif old[name][0] != new[name][0]:
            yield f"  ! {name}: {_header_changes(old[name][0], new[name][0])}"
        elif old[name] != new[name]:
            yield f"  ~ {name}"


def _header_changes(old: str, new: str) -> str:
    """The parameters and the result type that only one of two headers has."""
    before, after = _parts(old), _parts(new)
    parts = [f"-({part})" for part in before if part not in after] + [f"+({part})" for part in after if part not in before]
    return " ".join(parts) or "its parameters are in another order"


def _parts(header: str) -> list[str]:
    """`def f(a: int, b) -> str` -> ["def f(", "a: int", "b", "-> str"]."""
    parts, depth = [""], 0
    for char in _line(header):
        depth += (char in "([{") - (char in ")]}")
        if (char == "," and depth == 1) or (char == ")" and depth == 0):
            parts.append("")
        else:
            parts[-1] += char
            if char == "(" and depth == 1:
                parts.append("")
    return [part.strip() for part in parts]


def _line(header: str) -> str:
    return header.replace("\n", " ")


def _by_module(targets: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    for module, group in groupby(sorted(targets), key=lambda target: target.partition(":")[0]):
        yield module, [target.partition(":")[2] for target in group]


def _join(module: str, qualname: str) -> str:
    return f"{module}:{qualname}" if qualname else module


def _fingerprint(text: str | None, tree: ast.Module | None, qualname: str) -> str:
    if text is None or not qualname:
        return "" if text is None else digest(text)
    node = _find(tree, qualname)
    return digest(ast.get_source_segment(text, node) or "") if node is not None else ""


def _find(node: Any, qualname: str) -> Any:
    for name in filter(None, qualname.split(".")):
        node = next((child for child in getattr(node, "body", ()) if getattr(child, "name", None) == name), None)
    return node


def _describe(text: str, node: Any) -> dict[str, tuple[str, str]]:
    lines, members = text.splitlines(), dict[str, tuple[str, str]]()
    found = [(node.name, node)] if isinstance(node, FUNCTIONS) else _members(node, "")
    for name, member in found:
        header, code = _header(member), digest("\n".join(lines[member.lineno - 1 : member.end_lineno]))
        before = members.get(name)  # a property's setter, an overload
        members[name] = (f"{before[0]}\n{header}", digest(before[1] + code)) if before else (header, code)
    return members


def _members(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for child in node.body:
        if isinstance(child, FUNCTIONS):
            yield prefix + child.name, child
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield prefix + child.target.id, child
        elif isinstance(child, ast.ClassDef):
            yield from _members(child, f"{prefix}{child.name}.")


def _header(node: Any) -> str:
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node)
    decorators = "".join(f"@{ast.unparse(decorator)}\n" for decorator in node.decorator_list)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{decorators}{'async ' * isinstance(node, ast.AsyncFunctionDef)}def {node.name}({ast.unparse(node.args)}){returns}"
