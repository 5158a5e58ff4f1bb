"""The real scheduler of vLLM with ours in it, driven without a model: a fake executor zeroes, acknowledges and samples.

The fake believes nothing: it keeps a book of what every block holds, and fails the test as soon as a request would read a block
that holds another trust domain's content.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from blockwarden_core import layout
from blockwarden_core.identity import Scope, Sharing
from blockwarden_core.keys import EngineKey, EngineKeys
from blockwarden_core.policy import EnginePolicy, TenantShare, seal_policy
from blockwarden_core.salt import derive_salt, sign_token
from blockwarden_engine.admission import carry_token
from blockwarden_engine.plugin import register
from blockwarden_engine.protocol import ATTRIBUTE, StepAck, StepOrder
from blockwarden_engine.settings import BOOT_NONCE_ENV

PROPERTIES = Path(__file__).parents[3] / "property" / "engine" / "conftest.py"
_spec = importlib.util.spec_from_file_location("blockwarden_tests_properties", PROPERTIES)
assert _spec is not None and _spec.loader is not None
_properties = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_properties)
rules, world = _properties.rules, _properties.world
pytest_generate_tests = _properties.pytest_generate_tests

POLICY_UID = "policy-under-test"
BLOCK = 16


@dataclass
class Mounts:
    """The mounted policy and keys."""

    root: Path
    keys: EngineKeys
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    version: int = 0

    def share(self, *shares: TenantShare, grace: int = 0) -> EnginePolicy:
        """Writes the next sealed policy."""
        self.version += 1
        policy = EnginePolicy(
            policy_uid=POLICY_UID, version=self.version, tenants=shares, deregistration_grace_seconds=grace
        )  # fmt: skip
        for relative, text in ((layout.ENGINE_KEYS, self.keys.text()), (layout.ENGINE_POLICY, seal_policy(policy, self.keys))):
            path = self.root / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return policy

    def token(self, tenant: str, user: str = "", generation: int = 1) -> str:
        ids = (tenant, user) if user else (tenant,)
        sharing = Sharing(tenant, Scope.USER if user else Scope.TENANT, ids)
        salt = derive_salt(self.secret, deployment=POLICY_UID, generation=generation, sharing=sharing)
        return sign_token(self.keys.signing_key, policy_uid=POLICY_UID, tenant=tenant, generation=generation, salt=salt)


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounts:
    """Mounted files of an engine, and its environment."""
    for name, value in {
        layout.ROOT_ENV: str(tmp_path), layout.POLICY_UID_ENV: POLICY_UID, layout.POD_UID_ENV: "pod", BOOT_NONCE_ENV: "nonce",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    key = EngineKey.model_validate({"id": "k1", "key": secrets.token_bytes(32)})
    return Mounts(tmp_path, EngineKeys(active="k1", keys=(key,)))


class Leak(AssertionError):
    """A request would have read what is not its own."""


class FakeWorker:
    """One rank that holds, for each block, whose content is in it (None: zeroes) as a salt."""

    def __init__(self, blocks: int, vocabulary: int) -> None:
        self.content: list[str | None] = [None] * blocks
        self.tables: dict[str, list[int]] = {}
        self.salts: dict[str, str] = {}
        self.computed: dict[str, int] = {}
        self.prompts: dict[str, int] = {}
        self.tokens: dict[str, int] = {}
        self._vocabulary = vocabulary
        self.violations: list[tuple[str, int]] = []
        self.acknowledges = True

    def run(self, output: Any, salt_of: Callable[[str], str]) -> Any:
        """One step: zero what is ordered, then write each request's content where its tokens go."""
        order: StepOrder = getattr(output, ATTRIBUTE)
        for block in (*order.scrub, *order.zero):
            self.content[block] = None
        for request in output.finished_req_ids:
            self.tables.pop(request, None)
        self._take_tables(output, salt_of)
        for request, tokens in output.num_scheduled_tokens.items():
            self._forward(request, tokens)
        return self._answer(output, order)

    def _take_tables(self, output: Any, salt_of: Callable[[str], str]) -> None:
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id], self.computed[new.req_id] = list(new.block_ids[0]), new.num_computed_tokens
            self.salts[new.req_id], self.prompts[new.req_id] = salt_of(new.req_id), len(new.prompt_token_ids)
        cached = output.scheduled_cached_reqs
        for request, blocks, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
            if request in cached.resumed_req_ids:
                self.tables[request] = list(blocks[0])
            elif blocks is not None:
                self.tables[request] += blocks[0]
            self.computed[request] = computed

    def _forward(self, request: str, tokens: int) -> None:
        start, salt, table = self.computed[request], self.salts[request], self.tables[request]
        for position in range(0, start, BLOCK):
            if self.content[table[position // BLOCK]] != salt:
                raise Leak(f"{request} reads block {table[position // BLOCK]} at {position}, which is not its own")
        for position in range(start, start + tokens):
            block = table[position // BLOCK]
            if self.content[block] not in (None, salt):
                raise Leak(f"{request} writes into block {block}, which holds something of another trust domain")
            self.content[block] = salt
        self.computed[request] = start + tokens

    def _answer(self, output: Any, order: StepOrder) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(output.num_scheduled_tokens)
        sampled = [[self._sample(request)] if self.computed[request] >= self.tokens[request] else [] for request in ids]
        answer = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={request: at for at, request in enumerate(ids)}, sampled_token_ids=sampled
        )
        if self.acknowledges:
            found = [violation for violation in self.violations if violation[0] in ids]
            setattr(answer, ATTRIBUTE, StepAck(order.epoch, len(order.scrub), found))
        return answer

    def _sample(self, request: str) -> int:
        self.tokens[request] = max(self.tokens[request], self.computed[request] + 1)
        return (hash(request) + self.computed[request]) % self._vocabulary


class Rig:
    """A scheduler, a fake worker, and a clock that only steps move. `depth` steps are in flight at a time."""

    def __init__(self, scheduler: Any, hasher: Any, mounts: Mounts, depth: int) -> None:
        self.scheduler, self.mounts, self.depth = scheduler, mounts, depth
        self._hasher = hasher
        self.worker = FakeWorker(scheduler.ledger.size + 1, 1000)
        self.flights: deque[tuple[Any, Any]] = deque()
        self.requests: dict[str, Any] = {}
        self.finished: dict[str, str] = {}
        self.outputs: dict[str, list[int]] = {}
        self.first_step: dict[str, int] = {}
        self.cached: dict[str, int] = {}
        self.steps = 0
        self._serial = 0
        self.now = 0.0
        scheduler.clock = lambda: self.now

    def add(self, salt: str | None, prompt: int | list[int] = 40, *, tokens: int = 8, name: str = "") -> str:
        """Adds a request; a number as prompt is that many tokens, the same for the same number."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        self._serial += 1
        name = name or f"r{self._serial}"
        ids = prompt if isinstance(prompt, list) else [(7 * at + prompt) % 1000 for at in range(prompt)]
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
        params.update_from_generation_config({}, 999)
        hashed = salt.split(".")[3] if salt and salt.count(".") == 4 else salt  # as the engine core does before it hashes
        request = Request(name, ids, params, None, cache_salt=hashed, block_hasher=self._hasher)
        carry_token(request, salt)
        self.scheduler.add_request(request)
        self.requests[name] = request
        self.worker.tokens[name] = len(ids)
        self.outputs[name] = []
        return name

    def step(self) -> Any:
        """One turn of the engine's loop; the SchedulerOutput, or None when there was nothing to schedule."""
        output = None
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            self.flights.append((output, self.worker.run(output, self._salt)))
        while self.flights and (len(self.flights) >= self.depth or output is None):
            self._land(*self.flights.popleft())
        self.steps += 1
        self.check()
        return output

    def run(self, limit: int = 2000) -> int:
        """Steps until nothing is left to do; how many steps that took."""
        before = self.steps
        while self.scheduler.has_requests() or self.flights:
            self.step()
            if self.steps - before > limit:
                raise AssertionError(f"not done after {limit} steps: {self.scheduler.report().text()}")
        return self.steps - before

    def abort(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def share(self, *shares: TenantShare, grace: int = 0) -> None:
        """A new policy, in force with the next step."""
        self.mounts.share(*shares, grace=grace)
        self.scheduler.policy_file.poll()

    def check(self) -> None:
        """Every clean block is zero; counts add up."""
        pool = self.scheduler.report().pool
        assert pool.clean + pool.owned + pool.dirty + pool.scrubbing == pool.total
        for block in self.scheduler.ledger._clean:
            if self.worker.content[block] is not None:
                raise Leak(f"block {block} is clean and not zero")

    def _salt(self, name: str) -> str:
        return str(self.requests[name].trust_domain.salt)

    def _land(self, output: Any, answer: Any) -> None:
        self.now += 0.01 + 0.001 * output.total_num_scheduled_tokens  # what a small engine would take for the step
        for made in self.scheduler.update_from_output(output, answer).values():
            for part in made.outputs:
                self.outputs[part.request_id] += part.new_token_ids
                if part.prefill_stats is not None:
                    self.cached[part.request_id] = part.prefill_stats.num_cached_tokens
                if part.new_token_ids:
                    self.first_step.setdefault(part.request_id, self.steps)
                if part.finish_reason is not None:
                    self.finished[part.request_id] = str(part.finish_reason)

    def run_until(self, done: Callable[[], bool], limit: int = 200) -> int:
        """Steps until `done`; how many steps that took."""
        before = self.steps
        while not done():
            self.step()
            if self.steps - before > limit:
                raise AssertionError(f"not there after {limit} steps: {self.scheduler.report().text()}")
        return self.steps - before

    def tenant(self, name: str) -> Any:
        """A tenant's part of the report; None when it has nothing here."""
        return next((tenant for tenant in self.scheduler.report().tenants if tenant.name == name), None)


MakeRig = Callable[..., Rig]


@pytest.fixture(scope="session")
def share() -> Callable[..., TenantShare]:
    """A share whose limit is its guarantee unless given, of generation and floor 1 unless given."""

    def make(name: str, guaranteed: int | str, limit: int | str | None = None, **fields: Any) -> TenantShare:
        return TenantShare(
            name=name,
            guaranteed=guaranteed,
            limit=guaranteed if limit is None else limit,
            **{"generation": 1, "floor": 1} | fields,
        )

    return make


@pytest.fixture(scope="session")
def base_config(tiny_model: Path) -> Any:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what vLLM and torch deprecate among themselves while they are imported
        register()
        from vllm.config import ModelConfig, VllmConfig

        import blockwarden_engine.scheduler  # noqa: F401

        VllmConfig()
        return ModelConfig(model=str(tiny_model), dtype="float32", max_model_len=512)


@pytest.fixture(params=["sync", "async"])
def make_rig(request: pytest.FixtureRequest, base_config: Any, mounts: Mounts) -> Iterator[MakeRig]:
    """Makes a rig with a synchronous and with an asynchronous scheduler."""
    made: list[Rig] = []

    def make(*shares: TenantShare, blocks: int = 64, slots: int = 16, step_tokens: int = 128, **fields: Any) -> Rig:
        mounts.share(*shares)
        rig = _make(base_config, mounts, request.param == "async", blocks=blocks, slots=slots, step_tokens=step_tokens, **fields)
        made.append(rig)
        return rig

    make.forget = made.clear  # type: ignore[attr-defined]  # for whoever makes thousands
    yield make
    for rig in made:
        rig.scheduler._watcher.stop()


def _make(model: Any, mounts: Mounts, asynchronous: bool, *, blocks: int, slots: int, step_tokens: int, **fields: Any) -> Rig:
    import torch
    from vllm.config import CacheConfig, SchedulerConfig, VllmConfig
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from blockwarden_engine.scheduler import make_scheduler

    config = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=slots, max_num_batched_tokens=step_tokens, max_model_len=512, enable_chunked_prefill=True,
            is_encoder_decoder=False, **fields,
        ),
    )  # fmt: skip
    config.scheduler_config.async_scheduling = asynchronous
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    init_none_hash(sha256)
    scheduler = make_scheduler(
        config, kv_cache_config=cache, structured_output_manager=StructuredOutputManager(config), block_size=BLOCK,
        hash_block_size=BLOCK, log_stats=True,
    )  # fmt: skip
    return Rig(scheduler, get_request_block_hasher(BLOCK, sha256), mounts, config.max_concurrent_batches)
