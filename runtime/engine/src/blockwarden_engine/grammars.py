"""vLLM's manager of structured output, compiling with the requesting trust scope's own compiler.

Takes the place of vLLM's class in the engine core (`plugin`). Imports vLLM: it subclasses its manager.
"""

from __future__ import annotations

import copy
import logging
from typing import Any, Final

from vllm import envs
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

from .admission import admitted_token, process_admission
from .compilers import TenantCompilers
from .errors import UnsupportedEngine

logger = logging.getLogger("vllm.blockwarden")

MEBIBYTE: Final = 1024 * 1024
COMPILER_THREADS: Final = 8
"""As vLLM's own compiler."""
ANY_GRAMMAR: Final = 'root ::= "a"'


class ScopedGrammars(StructuredOutputManager):
    """Grammars by trust scope. A failure to compile is one request's, and what is logged of it is its kind: vLLM would log the
    compiler's message, which quotes the tenant's schema."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._compilers = TenantCompilers(self._make_compiler, envs.VLLM_XGRAMMAR_CACHE_MB * MEBIBYTE)

    def grammar_init(self, request: Any) -> None:
        request.grammar_scope = admitted_token.get()
        super().grammar_init(request)

    def _create_grammar(self, request: Any) -> Any:
        kind, text = request.structured_output_request.structured_output_key
        scope = request.grammar_scope
        floors = {share.name: share.floor for share in process_admission().policy.tenants}
        scoped = copy.copy(self.backend)
        try:
            scoped.compiler = self._compilers.of(scope.tenant, scope.generation, scope.salt, floors)
            return scoped.compile_grammar(kind, text, stop_token_ids=request.sampling_params.all_stop_token_ids)
        except Exception as error:
            logger.warning(
                "blockwarden: the grammar of request %s does not compile (%s)", request.request_id, type(error).__name__
            )
            raise
        finally:
            self._compilers.settle(scope.tenant, floors)

    def _make_compiler(self, limit: int) -> Any:
        import xgrammar  # in the engine core only, and there with the first grammar

        if not isinstance(self.backend, XgrammarBackend):
            raise UnsupportedEngine("grammars of another backend than xgrammar are not kept apart: start with the launcher")
        vocabulary = self.backend.compiler.compile_grammar(ANY_GRAMMAR).tokenizer_info  # a compiler does not tell its own
        return xgrammar.GrammarCompiler(vocabulary, max_threads=COMPILER_THREADS, cache_enabled=True, cache_limit_bytes=limit)
