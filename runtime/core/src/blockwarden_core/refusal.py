"""How a refusal that an engine makes deep inside vLLM tells a gateway which one it is.

vLLM turns an exception into an answer with a status, a type of its own choosing and the exception's text; nothing else gets
through, least of all a code. So the text begins with the code, in a form that neither vLLM's sentences nor a client's words in
them take at that place. The sentence after it is for people; a gateway never shows it.
"""

from __future__ import annotations

import re
from typing import Final

NEVER_FITS: Final = "request_too_large"
"""The request needs more blocks than its tenant may ever hold."""

_MARKED: Final = re.compile(r"blockwarden/(?P<code>[a-z_]{1,64}): ")


def render_refusal(code: str, sentence: str) -> str:
    """The text of an exception that carries `code` (lower-case letters and underscores) through vLLM."""
    return f"blockwarden/{code}: {sentence}"


def read_refusal(text: object) -> str | None:
    """The code in an error's text, None where there is none."""
    match = _MARKED.match(text) if isinstance(text, str) else None
    return match["code"] if match else None
