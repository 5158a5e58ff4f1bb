"""The charts, built once per run."""

import pytest

from stack.charts import Charts, build_charts


@pytest.fixture(scope="session")
def charts(tmp_path_factory: pytest.TempPathFactory) -> Charts:
    return build_charts(tmp_path_factory.mktemp("charts"))
