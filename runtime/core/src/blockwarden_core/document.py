"""The base of every JSON document that crosses a process: strict in what it accepts, stable in what it writes.

A document is read in one call (`read`), refuses unknown fields and says in one sentence, with the field's path, what is wrong
with it. camelCase on the wire, snake_case in Python.
"""

from __future__ import annotations

import json
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from .errors import DocumentError


class Document(BaseModel):
    """A frozen value with a JSON form."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True,
        hide_input_in_errors=True,
    )  # fmt: skip

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """The document in `text`.

        Raises:
            DocumentError: not JSON or not of this shape; the message names the first wrong field, never its value.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise DocumentError(f"{cls.__name__}: {first_problem(error)}") from None

    def text(self) -> str:
        """The document as canonical JSON: sorted keys, no spaces, the same for the same value."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), sort_keys=True, separators=(",", ":"))


def first_problem(error: ValidationError) -> str:
    """One sentence for the first problem of a pydantic error: the field's path and what is wrong, without the value."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ".".join(str(part) for part in first["loc"]) or "document"
    return f"{path}: {first['msg']}"
