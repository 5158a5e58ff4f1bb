"""What reaches vLLM: one line for each request that its input processing has made, written by the engine itself.

Not collected by pytest: the engine's processes run it (HARNESS_TWIN). It wraps InputProcessor.process_inputs outside of the
plugin's own hook, and changes nothing of a request. A file beside the record lifts the middleware's check of fields, so that a
test can show that the record would hold what a client smuggles.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any

SCRATCH = Path(os.environ["HARNESS_CONTROL"]).parent
RECORD = SCRATCH / "record.jsonl"
UNGUARDED = SCRATCH / "unguarded"
ARGUMENTS = ("session_id", "kv_hints", "trace_headers", "lora_request", "data_parallel_rank")
FIELDS = ("mm_features", "prompt_embeds", "data_parallel_rank", "lora_request")


def install() -> None:
    """Wraps vLLM's input processing in this process."""
    from vllm.v1.engine.input_processor import InputProcessor

    from blockwarden_engine import frontend

    original, check_body = InputProcessor.process_inputs, vars(frontend)["check_body"]
    signature = inspect.signature(original)

    @wraps(original)
    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(self, *args, **kwargs)
        with RECORD.open("a") as record:
            record.write(json.dumps(observe(request, signature.bind(self, *args, **kwargs).arguments), default=repr) + "\n")
        return request

    def check_unless_lifted(body: Mapping[str, Any], declared: frozenset[str]) -> None:
        if not UNGUARDED.exists():
            check_body(body, declared)

    InputProcessor.process_inputs = process_inputs
    vars(frontend)["check_body"] = check_unless_lifted


def observe(request: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What matters of a request: its salt, its name, its rank in the queue, and whatever else a client could reach."""
    reach = {f"argument {name}": arguments.get(name) for name in ARGUMENTS}
    reach |= {name: getattr(request, name) for name in FIELDS}
    reach["extra_args"] = getattr(request.sampling_params, "extra_args", None)
    return {
        "cache_salt": request.cache_salt,
        "request_id": request.request_id,
        "priority": request.priority,
        "reach": {name: value for name, value in reach.items() if value},
        "whole": repr(request),
    }


install()
