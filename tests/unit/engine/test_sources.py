"""What is read out of a source: nothing changes without its fingerprint, and what changed is told by name."""

from __future__ import annotations

import pytest

from blockwarden_engine.sources import Source, describe_changes, read_fingerprints, read_sources

OLD = """
LIMIT = 3

class Pool:
    size: int = 0

    def take(self, count: int) -> list[int]:
        return list(range(count))

    @property
    def free(self) -> int:
        return self.size

    def give(self, *blocks: int) -> None: ...

def make() -> Pool:
    return Pool()
"""
TARGETS = ("v1.pool", "v1.pool:Pool", "v1.pool:Pool.take", "v1.pool:make")


def read(text: str) -> dict[str, Source]:
    return read_sources(TARGETS, {"v1.pool": text}.get)


def changes(new: str) -> str:
    return "\n".join(describe_changes(read(OLD), read(new)))


@pytest.mark.parametrize(
    ("old", "new", "touched"),
    [
        ("range(count)", "range(count + 1)", set(TARGETS) - {"v1.pool:make"}),
        ("LIMIT = 3", "LIMIT = 4", {"v1.pool"}),
        ("return Pool()", "return Pool( )", {"v1.pool", "v1.pool:make"}),
        ("size: int = 0", "size: int = 1", {"v1.pool", "v1.pool:Pool"}),
    ],
)
def test_any_change_of_a_text_changes_its_fingerprint_and_no_other(old: str, new: str, touched: set[str]) -> None:
    before, after = (read_fingerprints(TARGETS, {"v1.pool": text}.get) for text in (OLD, OLD.replace(old, new)))
    assert {target for target in TARGETS if before[target] != after[target]} == touched
    assert all(before.values())
    assert before == {target: source.fingerprint for target, source in read(OLD).items()}


def test_what_is_gone_has_no_fingerprint() -> None:
    assert not any(read_fingerprints(TARGETS, {}.get).values())
    gone = read(OLD.replace("def make", "def build"))
    assert [target for target, source in gone.items() if not source.fingerprint] == ["v1.pool:make"]
    assert "- v1.pool:make" in describe_changes(read(OLD), gone)


def test_a_parameter_is_named_with_its_sign() -> None:
    assert "  ! Pool.take: -(count: int) +(count: int | None=None)" in changes(
        OLD.replace("count: int)", "count: int | None=None)")
    )
    assert "  ! make: -(-> Pool) +(-> Pool | None)" in changes(OLD.replace("-> Pool:", "-> Pool | None:"))


def test_members_that_come_go_and_change_inside_are_told() -> None:
    told = changes(
        OLD.replace("def give(self, *blocks: int) -> None: ...", "def put(self) -> None: ...").replace("self.size", "0")
    )
    assert "  - Pool.give: def give(self, *blocks: int) -> None" in told
    assert "  + Pool.put: def put(self) -> None" in told
    assert "  ~ Pool.free" in told
    assert "Pool.take" not in told
    assert changes(OLD) == ""


def test_a_change_outside_of_every_member_is_told_too() -> None:
    assert "statements outside" in changes(OLD.replace("LIMIT = 3", "LIMIT = 4"))
