"""Records the vLLM sources that the plugin stands on, and lists what changed in them since another version.

    python tools/record_hooks.py                          # the installed vLLM: what changed since the newest recorded version
    python tools/record_hooks.py vllm-0.33.0-….whl        # the same for a wheel, or a directory with the package vllm in it
    python tools/record_hooks.py … --since 0.32.0         # compare with this recorded version
    python tools/record_hooks.py … --write                # accept the version: its record goes into the plugin
    python tools/record_hooks.py … --write DIRECTORY      # its record goes elsewhere: examined, not accepted

Run it in the engine's environment (`$(python tools/engine_env.py) tools/record_hooks.py`). It exits with status 1, and writes no
accepted record, when something that the plugin stands on or imports is gone.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from blockwarden_engine import compat
from blockwarden_engine.sources import Read, Source, describe_changes, read_sources

PLUGIN = Path(compat.__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vllm", nargs="?", type=Path, help="a wheel, or the directory that holds vllm/ and its .dist-info")
    parser.add_argument("--since", help="a recorded version; the newest one unless given")
    parser.add_argument("--write", nargs="?", type=Path, const=compat.RECORDS, metavar="DIRECTORY")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(run(given.vllm, given.since or compat.accepted_versions()[-1], given.write, Path(scratch)))


def run(vllm: Path | None, since: str, write: Path | None, scratch: Path) -> int:
    """Compares, prints, and writes if asked to; the exit status."""
    version, read = find(vllm, scratch)
    found = read_sources(compat.all_targets(), read)
    gone = sorted([target for target, source in found.items() if not source.fingerprint] + list(missing_imports(read)))
    changes = describe_changes(load(since), found)
    needed = [f"- gone, and the plugin needs it: vllm.{target}" for target in gone]
    print(
        f"record-hooks: vLLM {version}: {len(changes)} of {len(found)} sources differ from {since}", *changes, *needed, sep="\n"
    )
    if write and not (gone and write == compat.RECORDS):
        hooks = {target: asdict(source) for target, source in found.items()}
        path = write / f"{version}.json"
        path.write_text(json.dumps({"hooks": hooks, "vllm": version}, indent=1, sort_keys=True) + "\n")
        print(f"record-hooks: wrote {path}")
    return int(bool(gone))


def find(vllm: Path | None, scratch: Path) -> tuple[str, Read]:
    """(version, reader) of the installed vLLM, of a wheel or of a directory."""
    if vllm is None:
        return compat.observe_version(), compat.installed_sources()
    if vllm.is_file():
        with zipfile.ZipFile(vllm) as wheel:
            wheel.extractall(scratch, [name for name in wheel.namelist() if name.endswith((".py", "/METADATA"))])
        vllm = scratch
    [described] = vllm.glob("vllm-*.dist-info")
    return described.name.removesuffix(".dist-info").removeprefix("vllm-").partition("+")[0], compat.sources_in(vllm / "vllm")


def load(version: str) -> dict[str, Source]:
    """The record of an accepted version."""
    record = json.loads((compat.RECORDS / f"{version}.json").read_text())
    return {
        target: Source(hook["fingerprint"], {name: tuple(member) for name, member in hook["members"].items()})
        for target, hook in record["hooks"].items()
    }


def missing_imports(read: Read) -> Iterator[str]:
    """What the plugin imports from vLLM and this one does not have."""
    wanted = {
        (node.module.removeprefix("vllm").removeprefix("."), alias.name)
        for path in PLUGIN.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "vllm"
        for alias in node.names
    }
    for module, name in wanted:
        text = read(module) or read(f"{module}.__init__")
        if text is None or not (name in _names(text) or read(f"{module}.{name}")):
            yield f"{module}:{name}"


def _names(text: str) -> set[str]:
    """Everything that a module's text binds or mentions as a name: a lazily resolved one is a string in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


if __name__ == "__main__":
    main()
