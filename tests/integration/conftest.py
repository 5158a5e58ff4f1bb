"""What the integration tests share: the control plane's programs are there before the first test's clock starts.

In a fresh clone they are compiled, which takes longer than any test may.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds what is missing. Tests of the engine have an environment of their own and need no control plane."""
    if session.config.option.collectonly:
        return
    if any(HERE in item.path.parents and HERE / "engine" not in item.path.parents for item in session.items):
        from localnode.controlplane import Programs

        Programs.resolve()
