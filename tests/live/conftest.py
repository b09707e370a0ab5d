"""One real server for all tests that want one: a start takes half a minute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.real import Shared


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """Call it for the server."""
    shared = Shared(tmp_path_factory.mktemp("cache"))
    yield shared
    shared.close()
