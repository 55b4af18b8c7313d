"""README and docs/ are true: code blocks run, links lead somewhere. pages.py says how a page is read."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

import spidertensor
from pages import ROOT, anchors, links, page_name, parse, play, prose
from spidertensor import cli

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
OF_STUDY = [ROOT / "study" / "README.md", *sorted((ROOT / "study" / "docs").glob("*.md"))]
GENERATED = {"command.md"}  # made from the commands, and tested there
NEEDS_JAX = {"engines.md"}
PROGRAMS = {"spider": cli.app}


# Code


OWN_TEST = {"streams.md"}  # needs a server: test_streams_page.py
WRITTEN = [page for page in PAGES if page.name not in GENERATED | OWN_TEST]


@pytest.mark.slow
@pytest.mark.parametrize("page", WRITTEN, ids=page_name)
def test_code_runs_and_prints_what_the_page_says(page, folder):
    if page.name in NEEDS_JAX:
        pytest.importorskip("jax")
    shown = play(page, folder, PROGRAMS)
    if page.name == "engines.md":
        info = " ".join(shown["spider info visits.spider"].split())
        assert "'shapes': ((16, 3), (16, 16, 8), (16,))" in info
        assert (folder / "predicted.csv").read_text().startswith("user,place,hour,minutes,mean,std\n")


def test_a_wrong_option_on_a_page_would_be_found():
    with pytest.raises(Exception, match="no-such"):
        parse(cli.app, ["evaluate", "acc", "--no-such"], "here")
    with pytest.raises(AssertionError, match="no command"):
        parse(cli.app, ["evolve", "acc"], "here")


def test_docstring_examples(folder):
    package = Path(spidertensor.__file__).parent
    attempted = 0
    for path in [
        path for path in sorted(package.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")
    ]:
        parts = path.relative_to(package.parent).with_suffix("").parts
        module = import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        found = doctest.testmod(module)
        assert found.failed == 0, path
        attempted += found.attempted
    assert attempted


# Links and words


@pytest.mark.parametrize("page", PAGES + OF_STUDY, ids=page_name)
def test_links_lead_somewhere(page):
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT), f"{page.name}: {link} leaves the repository"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_every_page_and_image_is_reachable_from_the_readme():
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        seen.add(page)
        if page.suffix != ".md":
            continue
        paths = [link.partition("#")[0] for link in links(page) if ":" not in link]
        targets = {(page.parent / path).resolve() for path in paths if path}
        ahead += [target for target in targets if target not in seen and target.is_file()]
    images = [*ROOT.glob("docs/images/*.png"), *ROOT.glob("study/docs/images/*.png")]
    lost = [
        each.name for each in [*PAGES, *OF_STUDY, *images] if each not in seen and each.name != "index.md"
    ]
    assert not lost


def test_the_readme_is_short_and_names_how_to_try_it():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(prose(ROOT / "README.md").split()) < 600
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = set(re.findall(r"\bmake ([a-z]+)\b", text))
    assert {"demo", "test"} <= named <= set(targets)


PACKAGE = ROOT / "src" / "spidertensor"


def on_the_map() -> set[str]:
    """Paths on the pages for developers. In a table of the files in a folder they are relative to it."""
    paths, folder = set(), ""
    pages = (ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md")
    for line in "\n\n".join(page.read_text(encoding="utf-8") for page in pages).splitlines():
        found = re.findall(r"`([\w/.]+(?:\.py|\.toml|/))`", line)
        if line.startswith("|file in "):
            (folder,) = found
        elif not line:
            folder = ""
        else:
            paths |= {folder + path for path in found if "NAME" not in path}
    return paths


def test_tests_that_pages_name_exist():
    tests = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    there = {name for text in tests for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))}
    assert named
    assert named <= there


def test_the_files_on_the_map_exist():
    folders = (PACKAGE, ROOT, ROOT / "study" / "src" / "spidertensor_study")
    lost = [path for path in on_the_map() if not any((each / path).exists() for each in folders)]
    assert not lost


@pytest.mark.parametrize("folder", ["estimator", "evaluation", "learner", "service", "spider"])
def test_the_map_names_every_module(folder):
    modules = {str(path.relative_to(PACKAGE)) for path in (PACKAGE / folder).glob("*.py")}
    assert not {path for path in modules if not path.endswith("__init__.py")} - on_the_map()


def test_the_path_of_an_entry_names_functions_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for path, functions in re.findall(r"\|`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)\|", text):
        source = (PACKAGE / path).read_text(encoding="utf-8")
        for function in re.findall(r"(\w+)`", functions):
            assert f"def {function}(" in source, f"{path}: {function}"
