"""`spider similar` and `spider explain`: what they show, write and refuse."""

from __future__ import annotations

import json

import pytest

from products import model
from spidertensor import cli

ENTRY = ("--given", "user=u1", "--given", "category=c1", "--given", "product=1")


@pytest.fixture
def spider(folder, capsys):
    """Run a command on a model of users, categories and products."""
    model().save("m.spider")

    def run(command, *arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main([command, "m.spider", *map(str, arguments)])
        return stopped.value.code, *capsys.readouterr()

    return run


def test_similar_says_what_the_model_says(spider):
    code, out, err = spider("similar", "product", "1", "-n", 3, "--json")
    assert (code, err) == (0, "")
    wanted = [each._asdict() for each in model().similar("product", 1, 3)]
    assert json.loads(out) == {"model": "m.spider", "mode": "product", "id": 1, "nodes": wanted}
    lines = spider("similar", "product", "1", "-n", 3)[1].splitlines()
    assert lines[0].strip() == "like product 1"
    assert [line.split()[0] for line in lines[2:]] == [str(each["id"]) for each in wanted]


def test_explain_shows_parts_that_add_up(spider, folder):
    code, out, _ = spider("explain", *ENTRY, "--json")
    assert code == 0
    found = json.loads(out)
    assert sum(part["effect"] for part in found["parts"]) == pytest.approx(found["mean"], abs=1e-5)
    code, out, err = spider("explain", *ENTRY, "--plot", "parts.png")
    assert (code, err.strip()) == (0, "picture: parts.png")
    assert (folder / "parts.png").read_bytes().startswith(b"\x89PNG")
    for part in found["parts"]:
        (line,) = (line for line in out.splitlines() if line.startswith(f"{part['name']} "))
        assert f"{part['effect']:+.4g}" in line
    assert out.splitlines()[-1].split()[:2] == ["sum", f"{found['latent']:.4g}"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("similar", "film", "p1"), "no mode 'film', only: user, "),
        (("similar", "product", "unknown"), "'unknown' was never learned"),
        (("explain", "--given", "user=u1"), "--given is missing for: "),
        (("explain", *ENTRY, "--given", "colour=red"), "no mode 'colour'"),
        (("explain", "--given", "u1"), "--given takes mode=id"),
        (("explain", *ENTRY, "--plot", "parts.txt"), "use one of the extensions .png"),
        (("explain", *ENTRY, "--plot", "nowhere/parts.png"), "its folder must exist"),
    ],
)
def test_refused(spider, arguments, words):
    code, out, err = spider(*arguments)
    assert (code, out) == (2, "")
    assert words in err
