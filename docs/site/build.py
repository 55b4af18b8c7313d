"""Build the documentation site into build/docs/site: `make docs`. A broken link or anchor fails the build.

The pages are laid out as in the repository, so that their relative links work on GitHub and on the site;
only README.md becomes index.md. Files that pages link to (results, experiments, programs) are copied; for a
folder that a page links to, a page with a list of its files is written.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[2]
STAGE = ROOT / "build" / "docs"
PAGES = STAGE / "pages"
LINK = re.compile(r"(\]\()([^)#:\s]+)([)#])")  # ](path) and ](path#anchor), not ](https://...)


def main() -> None:
    shutil.rmtree(STAGE, ignore_errors=True)
    PAGES.mkdir(parents=True)
    here = ROOT / "docs" / "site"
    for name in ("zensical.toml", "lists.py"):
        shutil.copy(here / name, STAGE)
    shutil.copy(here / "site.css", PAGES)
    shutil.copytree(ROOT / "docs" / "images", PAGES / "docs" / "images")
    shutil.copy(here / "api.md", PAGES / "docs")
    top = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "study/README.md")
    for page in (*top, *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("study/docs/*.md"))):
        lay_out(ROOT / page)
    check_navigation()
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    if subprocess.run(command, cwd=STAGE, check=False).returncode:
        sys.exit("zensical found something to mend")
    check_links(STAGE / "site")


def lay_out(page: Path) -> None:
    """Copy a page, with its links as the site has them, and what it links to."""

    def link(match: re.Match[str]) -> str:
        before, path, after = match.groups()
        target = (page.parent / path).resolve()
        if target == ROOT / "README.md":
            path = path.removesuffix("README.md") + "index.md"
        elif target.is_dir():
            list_folder(target)
            path = f"{path.rstrip('/')}/index.md"
        elif target.is_file() and target.suffix != ".md":
            copy(target)
        return before + path + after

    name = "index.md" if page == ROOT / "README.md" else str(page.relative_to(ROOT))
    (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
    (PAGES / name).write_text(LINK.sub(link, page.read_text(encoding="utf-8")), encoding="utf-8")


def check_navigation() -> None:
    """Every page can be reached, and every line of the navigation has its page."""
    listed = set(re.findall(r'"([\w/-]+\.md)"', (STAGE / "zensical.toml").read_text(encoding="utf-8")))
    made = {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md") if path.name != "index.md"}
    made.add("index.md")
    if listed != made:
        sys.exit(f"pages and navigation (docs/site/zensical.toml) differ: {', '.join(sorted(listed ^ made))}")


def copy(file: Path) -> None:
    target = PAGES / file.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, target)


def list_folder(folder: Path) -> None:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    for path in files:
        copy(path)
    lines = [f"# {folder.relative_to(ROOT)}", "", *(f"- [{path.name}]({path.name})" for path in files), ""]
    (PAGES / folder.relative_to(ROOT) / "index.md").write_text("\n".join(lines), encoding="utf-8")


class Page(HTMLParser):
    """What a page of the site links to, and the anchors it has."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {""}
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value and not re.match(r"[a-z]+:|//", value):
                self.links.add(unquote(value))
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def check_links(site: Path) -> None:
    """Zensical checks links between Markdown pages; this checks all of them, to images and files too."""
    pages = {file: Page(file) for file in site.rglob("*.html") if file.name != "404.html"}
    broken = []
    for file, page in pages.items():
        for link in page.links:
            path, _, anchor = link.partition("#")
            target = (file.parent / path).resolve() if path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (target in pages and anchor not in pages[target].anchors):
                broken.append(f"{file.relative_to(site)}: {link}")
    if broken:
        sys.exit("\n".join(["broken links:", *sorted(broken)]))


if __name__ == "__main__":
    main()
