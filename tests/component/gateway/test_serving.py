"""What a client gets through a gateway that serves."""

from __future__ import annotations

from typing import Any

CHAT = "/v1/chat/completions"


def ask(text: str = "hello there", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **fields}


async def test_a_chat_answer_is_rebuilt(gateway, engine):
    status, answer = await gateway.post(CHAT, ask())
    assert status == 200
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "one two three"}
    assert answer["id"].startswith("chatcmpl-gw-")
    assert not {"kv_transfer_params", "system_fingerprint", "metrics"} & answer.keys()
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert len(engine.tenant_records) == 1
