"""Caches besides KV on a live engine with a vision-language model, and the public attack on the one that processes media.

On the engine as it starts, no cache of media exists and no request with media gets anywhere. On its broken twin, every refusal of
media taken out and vLLM's caches as they come, one tenant gets another's image described by naming its `uuid`, although both are
salted: the salt is in the KV cache's keys only.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
from PIL import Image

UUID = "the-other-tenants-image"
CAPTION = "describe it"
NO_MEDIA = """
runner = core.model_executor.driver_worker.worker.model_runner
result = {
    "receiver": core.mm_receiver_cache is None, "scheduler": scheduler.encoder_cache_manager.cache_size,
    "budget": scheduler.max_num_encoder_input_tokens, "worker": len(runner.encoder_cache),
    "processor": runner.model_config.multimodal_config.mm_processor_cache_gb,
}
"""
IN_CORE = """
from vllm import SamplingParams
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.engine import EngineCoreRequest
feature = MultiModalFeatureSpec(
    data=None, modality="image", identifier=UUID, mm_position=PlaceholderRange(offset=0, length=4), mm_hash=UUID)
request = EngineCoreRequest(
    request_id="intruder", prompt_token_ids=[2] * 4, mm_features=[feature], sampling_params=SamplingParams(max_tokens=2),
    pooling_params=None, arrival_time=0.0, lora_request=None, cache_salt=TOKEN, data_parallel_rank=None)
try:
    core.preprocess_add_request(request)
    result = "admitted"
except Exception as error:
    result = type(error).__name__
"""


def image(shade: int) -> str:
    """A picture as a data URL."""
    picture, file = Image.new("RGB", (28, 28), (shade, 255 - shade, shade // 2)), io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def ask(engine: Any, tenant: str, **part: Any) -> Any:
    """A chat of this tenant about one image part."""
    content = [{"type": "image_url", **part}, {"type": "text", "text": CAPTION}]
    return engine.request("POST", "/v1/chat/completions", {
        "model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0,
        "ignore_eos": True, "cache_salt": engine.deployment.token(tenant),
    })  # fmt: skip


def said(answer: Any) -> str:
    assert answer.status == 200, answer.body
    return str(answer.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    "part",
    [
        {"image_url": {"url": image(1)}}, {"image_url": {"url": image(1)}, "uuid": UUID}, {"image_url": None, "uuid": UUID},
        {"image_url": {"url": "http://127.0.0.1:1/x.png"}},
    ],
    ids=["an image", "an image with a uuid", "a uuid and no image", "an address"],
)  # fmt: skip
@pytest.mark.parametrize("tenant", ["a", "b"])
def test_media_is_refused_by_an_engine_whose_model_could_see_it(vision_engine: Any, tenant: str, part: dict[str, Any]) -> None:
    answer = ask(vision_engine, tenant, **part)
    assert (answer.status, answer.json()["error"]["code"]) == (400, "media_refused")


def test_no_cache_of_media_exists(vision_engine: Any) -> None:
    assert vision_engine.complete(vision_engine.deployment.token("a"), "text is served").status == 200
    assert vision_engine.core(NO_MEDIA) == {"receiver": True, "scheduler": 0, "budget": 0, "worker": 0, "processor": 0}


def test_the_engine_core_refuses_media_by_itself(vision_engine: Any) -> None:
    token = vision_engine.deployment.token("a")
    assert vision_engine.core(f"UUID, TOKEN = {UUID!r}, {token!r}\n{IN_CORE}") == "MediaRefused"


def test_the_twin_without_the_protection_hands_out_another_tenants_image(media_engine: Any) -> None:
    before = ask(media_engine, "b", image_url=None, uuid=UUID)
    assert before.status >= 400, "nobody has sent it yet: the answer tells b so"
    theirs = said(ask(media_engine, "a", image_url={"url": image(200)}, uuid=UUID))
    other = said(ask(media_engine, "a", image_url={"url": image(3)}))
    assert theirs != other, "this model tells images apart"
    assert said(ask(media_engine, "b", image_url=None, uuid=UUID)) == theirs


def test_the_checks_find_the_twins_caches(media_engine: Any) -> None:
    with pytest.raises(AssertionError):
        test_no_cache_of_media_exists(media_engine)
    with pytest.raises(AssertionError):
        test_the_engine_core_refuses_media_by_itself(media_engine)
