"""What the tests of pages share."""

from __future__ import annotations

import pytest

from pages import prepare


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return prepare(tmp_path, monkeypatch)
