"""Records the fingerprints of the vLLM sources that the plugin stands on, for a maintainer who has reviewed them.

Run it in the engine's environment after moving to another vLLM or adding a hook, and review what changed in vLLM before
committing the result: `$(python tools/engine_env.py) tools/record_hooks.py`.
"""

from __future__ import annotations

import json

from blockwarden_engine.compat import RECORD, observe_fingerprints, observe_version


def main() -> None:
    version, fingerprints = observe_version(), observe_fingerprints()
    gone = [target for target, fingerprint in fingerprints.items() if not fingerprint]
    if gone:
        raise SystemExit(f"record-hooks: not in the installed vLLM: {', '.join(gone)}")
    RECORD.write_text(json.dumps({"fingerprints": fingerprints, "vllm": version}, indent=2, sort_keys=True) + "\n")
    print(f"record-hooks: {len(fingerprints)} sources of vLLM {version}")


if __name__ == "__main__":
    main()
