"""The documentation site: it builds, shows what it should, and a broken link stops it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("docs", "study", "benchmarks", "examples", "src")
FILES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CITATION.cff",
    "LICENSE",
    "pyproject.toml",
    "Makefile",
)

pytestmark = pytest.mark.skipif(
    not (find_spec("zensical") and find_spec("mkdocstrings_handlers")), reason="needs the extra docs"
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    return folder


def build(repository: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repository / "docs/site/build.py")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


class Addresses(HTMLParser):
    """What a page fetches from elsewhere when it is shown."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if (name == "src" or (tag == "link" and name == "href")) and re.match(
                "(https?:)?//", value or ""
            ):
                self.fetched.append(value or "")


@pytest.fixture(scope="module")
def site(copy, tmp_path_factory) -> Path:
    """The site, with a link to a folder and one to a file more than the pages have."""
    page = copy / "docs/method.md"
    text = page.read_text(encoding="utf-8")
    links = "[a](../study/experiments) [b](../study/results/grid.jsonl.gz)"
    page.write_text(f"{text}\n{links}\n", encoding="utf-8")
    done = build(copy)
    page.write_text(text, encoding="utf-8")
    assert done.returncode == 0, done.stderr + done.stdout
    return (copy / "build/docs/site").rename(tmp_path_factory.mktemp("site") / "site")


@pytest.mark.slow
def test_the_site(site):
    pages = {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    for page in [*ROOT.glob("docs/*.md"), *ROOT.glob("study/docs/*.md")]:
        assert str(page.relative_to(ROOT).with_suffix(".html")) in pages
    assert not [address for page in pages.values() for address in Addresses(page).fetched]
    api = pages["docs/api.html"]
    for name in ("SpiderRegressor.partial_fit", "SpiderClassifier.predict_proba", "CustomNetwork", "load"):
        assert re.search(rf'id="spidertensor\.[\w.]*{re.escape(name)}"', api), name
    assert "<li><p><code>rank</code>" in api or "<li><code>rank</code>" in api  # a list, not running text
    assert "partial_fit" in (site / "search.json").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "links",
    [
        ("[x](no-page.md)", "[x](quick-start.md#no-anchor)", "[x](#no-heading)", "[x](../README.md#no-part)"),
        ("![x](images/no-image.png)", "[x](../study/results/no-rows.gz)", '<a href="no-page.html">x</a>'),
    ],
    ids=["pages", "files"],
)
def test_broken_links_stop_the_build(copy, links):
    page = copy / "docs/method.md"
    text = page.read_text(encoding="utf-8")
    try:
        page.write_text("\n\n".join([text, *links]), encoding="utf-8")
        done = build(copy)
    finally:
        page.write_text(text, encoding="utf-8")
    assert done.returncode != 0
    said = re.sub(r"\x1b\[[\d;]*m", "", done.stderr + done.stdout)  # without colours
    for link in links:
        assert re.search(r"no-\w+", link)[0] in said, said


@pytest.mark.slow
def test_links_to_folders_and_files_of_the_repository(site):
    assert 'href="grid.toml"' in (site / "study/experiments/index.html").read_text(encoding="utf-8")
    assert (site / "study/experiments/grid.toml").is_file()
    assert (site / "study/results/grid.jsonl.gz").read_bytes() == (
        ROOT / "study/results/grid.jsonl.gz"
    ).read_bytes()
