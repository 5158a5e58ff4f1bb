"""vLLM's manager of structured output, compiling with the requesting trust scope's own compiler.

Takes the place of vLLM's class in the engine core (`plugin`). Imports vLLM: it subclasses its manager.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from vllm import envs
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

from .admission import admitted, process_admission
from .compilers import TenantCompilers
from .errors import UnsupportedEngine

logger = logging.getLogger("vllm.blockwarden")

MEBIBYTE: Final = 1024 * 1024
COMPILER_THREADS: Final = 8
"""As vLLM's own compiler."""


class ScopedGrammars(StructuredOutputManager):
    """Grammars by trust scope. A failure to compile is one request's, and what is logged of it is its kind: vLLM would log the
    compiler's message, which quotes the tenant's schema."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._compilers: TenantCompilers | None = None
        self._making = threading.Lock()

    def grammar_init(self, request: Any) -> None:
        if request.structured_output_request is not None:
            token = admitted.get()
            request.grammar_scope = (token.tenant, token.generation, token.salt)
        super().grammar_init(request)

    def _create_grammar(self, request: Any) -> Any:
        kind, text = request.structured_output_request.structured_output_key
        tenant, generation, salt = request.grammar_scope
        floors = {share.name: share.floor for share in process_admission().policy.tenants}
        scoped = copy.copy(self.backend)
        scoped.compiler = self._tenant_compilers().of(tenant, generation, salt, floors)
        try:
            return scoped.compile_grammar(kind, text, stop_token_ids=request.sampling_params.all_stop_token_ids)
        except Exception as error:
            logger.warning(
                "blockwarden: the grammar of request %s does not compile (%s)", request.request_id, type(error).__name__
            )
            raise
        finally:
            self._tenant_compilers().settle(tenant, floors)

    def _tenant_compilers(self) -> TenantCompilers:
        with self._making:
            if self._compilers is None:
                self._compilers = TenantCompilers(self._factory(), envs.VLLM_XGRAMMAR_CACHE_MB * MEBIBYTE)
            return self._compilers

    def _factory(self) -> Callable[[int], Any]:
        import xgrammar  # in the engine core only, and there with the first grammar

        if not isinstance(self.backend, XgrammarBackend):
            raise UnsupportedEngine("grammars of another backend than xgrammar are not kept apart: start with the launcher")
        vocabulary = self.backend.compiler.compile_grammar('root ::= "a"').tokenizer_info

        def make(limit: int) -> Any:
            return xgrammar.GrammarCompiler(vocabulary, max_threads=COMPILER_THREADS, cache_enabled=True, cache_limit_bytes=limit)

        return make
