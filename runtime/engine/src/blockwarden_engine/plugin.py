"""The plugin itself: vLLM calls `register` in every process of an engine, before anything of ours runs there.

It proves that the installed vLLM is the recorded one, puts admission where a request cannot get around it, and replaces what vLLM
makes by a name in its code and by no option. Raising here stops the process: vLLM does not catch what an entry point raises. What
it cannot prove from inside (that it was loaded at all) the scheduler, the worker and the middleware demand with `require_plugin`
when they are made; they are named on the command line, so vLLM cannot start without them.
"""

from __future__ import annotations

from functools import cache, wraps
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from blockwarden_core.errors import TokenError
from blockwarden_core.policy import TenantShare
from blockwarden_core.refusal import render_refusal
from blockwarden_core.salt import Token

from .admission import admitted_token, carry_token, process_admission
from .compat import check_engine, hook_api
from .dump import dump_engine_exception
from .errors import MediaRefused, RequestRefused, UnsupportedEngine
from .installed import HOOKS, record_hooks
from .settings import SCHEDULER, WORKER
from .support import check_supported


def register() -> None:
    """Installs the hooks in this process; vLLM calls it once per process.

    Raises:
        HookError: the installed vLLM is not the one that this plugin was written for.
    """
    if HOOKS:
        return
    fingerprints = check_engine()
    api = hook_api()
    api.InputProcessor.process_inputs = _admitting_input(api.InputProcessor.process_inputs)
    api.EngineCore.preprocess_add_request = _admitting_core(api.EngineCore.preprocess_add_request)
    api.EngineCoreProc._make_ready_response = _checked_core(api.EngineCoreProc._make_ready_response)
    api.EngineCore.blockwarden_report = _report
    api.EngineArgs.create_engine_config = _checked_config(api.EngineArgs.create_engine_config)
    api.core.StructuredOutputManager = _grammars_class()
    api.core.dump_engine_exception = dump_engine_exception
    record_hooks(fingerprints)


def _admitting_input(original: Any) -> Any:
    """InputProcessor.process_inputs that refuses a request with a client error (API process)."""

    @wraps(original)
    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        request, share = original(self, *args, **kwargs), None
        try:
            _, share = _admit(request)
            _fit(request, share)
        except TokenError as error:
            process_admission().refusals.count(error.code)
            raise hook_api().GracefulHTTPError(render_refusal(error.code, str(error)), HTTPStatus.FORBIDDEN) from None
        except RequestRefused as error:
            process_admission().refusals.count(error.code, share)
            raise hook_api().GracefulHTTPError(render_refusal(error.code, str(error)), HTTPStatus.BAD_REQUEST) from None
        return request

    return process_inputs


def _admitting_core(original: Any) -> Any:
    """EngineCore.preprocess_add_request that refuses a request inside vLLM's own per-request error handling (engine core).

    vLLM hashes the prompt here. The hashes stand on the salt alone: with the whole token in them, each rotation of the engine
    key would empty every tenant's cache.
    """

    @wraps(original)
    def preprocess_add_request(self: Any, request: Any) -> Any:
        try:
            token, text = _admit(request)[0], request.cache_salt
        except (TokenError, RequestRefused) as error:
            process_admission().refusals.count(error.code)
            raise
        request.cache_salt = token.salt
        admitted_token.set(token)
        made, wave = original(self, request)
        carry_token(made, text)
        return made, wave

    return preprocess_add_request


def _admit(request: Any) -> tuple[Token, TenantShare]:
    admitted = process_admission().admit(request.cache_salt)
    if request.mm_features or request.prompt_embeds is not None:
        raise MediaRefused("the request carries media or embeddings, which cannot be scoped to a tenant: send text")
    return admitted


def _fit(request: Any, share: TenantShare) -> None:
    sampling = request.sampling_params
    if sampling is not None:
        prompt = len(request.prompt_token_ids or ())
        sampling.max_tokens = process_admission().longest_answer(share, prompt, sampling.max_tokens)


def _checked_config(original: Any) -> Any:
    """EngineArgs.create_engine_config that refuses what is not kept apart, before a weight is read (API process).

    What vLLM itself refuses becomes a sentence too, in place of a traceback that repeats the whole configuration.
    """

    @wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            config = original(self, *args, **kwargs)
        except ValidationError as error:
            said = "; ".join(str(one["msg"]).removeprefix("Value error, ") for one in error.errors())
            raise UnsupportedEngine(f"vLLM refuses this configuration: {said}") from None
        check_supported(config)
        return config

    return create_engine_config


def _checked_core(original: Any) -> Any:
    """EngineCoreProc._make_ready_response that ends the engine if anything of vLLM's is in it where ours belongs.

    vLLM loads plugins inside EngineCore.__init__, so that one is too late to replace; nobody is served before this answer.
    """

    @wraps(original)
    def _make_ready_response(self: Any) -> Any:
        check_core(self)
        self.scheduler.attach_engine(self)
        return original(self)

    return _make_ready_response


def check_core(core: Any) -> None:
    """Raises:
    UnsupportedEngine: the engine core has another scheduler, worker or manager of grammars, or a cache of media.
    """
    if type(core.scheduler) not in _scheduler_classes():
        raise UnsupportedEngine(f"the engine has another scheduler than {SCHEDULER}: start it with python -m blockwarden_engine")
    if core.vllm_config.parallel_config.worker_cls != WORKER:
        raise UnsupportedEngine(f"the engine has another worker than {WORKER}: start it with python -m blockwarden_engine")
    if type(core.structured_output_manager) is not _grammars_class():
        raise UnsupportedEngine("the engine caches grammars for all tenants together: start it with python -m blockwarden_engine")
    if core.mm_receiver_cache is not None or core.scheduler.encoder_cache_manager.cache_size:
        raise UnsupportedEngine("the engine has a cache of media, which is not keyed by tenant: run it without media")


@cache
def _grammars_class() -> type[Any]:
    from .grammars import ScopedGrammars

    return ScopedGrammars


@cache
def _scheduler_classes() -> tuple[type[Any], ...]:
    from .scheduler import SCHEDULER_CLASSES

    return SCHEDULER_CLASSES


def _report(self: Any) -> str:
    """EngineCore.blockwarden_report: the EngineReport as text; called through vLLM's own utility channel."""
    report = self.scheduler.report()
    refused = process_admission().refusals.since_start(tenant.name for tenant in report.tenants)
    text: str = report.model_copy(update={"refusals": refused}).text()
    return text
