"""A long private prompt, of the length at which prefix caching shows in the time to the first token."""

from __future__ import annotations

_FINDINGS = (
    "The patient reports that the pain in the left knee began after the walk on {day} and has grown since.",
    "Blood pressure on {day} was {number} over 80, and the pulse was regular at rest and after exertion.",
    "The laboratory returned a ferritin value of {number} micrograms per litre on {day}, below the last one.",
    "Medication was changed on {day}: {number} milligrams in the morning, nothing in the evening.",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


def private_prompt(case: str, *, sentences: int = 48) -> str:
    """A medical record of about 27 tokens a sentence. `case` stands first, so that records of two cases share no block."""
    lines = [_FINDINGS[n % 4].format(day=_DAYS[n % 5], number=100 + 7 * n) for n in range(sentences)]
    return f"Case {case}, confidential. " + " ".join(lines) + " Summarise the case in one short sentence."
