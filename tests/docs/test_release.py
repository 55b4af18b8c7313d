"""What is released: one version everywhere, and a wheel and an sdist that install and run."""

from __future__ import annotations

import email
import email.message
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import spidertensor

ROOT = Path(__file__).resolve().parents[2]
VERSION = spidertensor.__version__


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version():
    """It stands in __init__.py; the build reads it there, and three other files must be changed with it."""
    project = tomllib.loads(text("pyproject.toml"))
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/spidertensor/__init__.py"
    assert re.search(r"^## (\S+)", text("CHANGELOG.md"), re.M)[1] == VERSION
    assert re.search(r"^version: (\S+)$", text("CITATION.cff"), re.M)[1] == VERSION
    study = tomllib.loads(text("study/pyproject.toml"))["project"]
    assert study["version"] == VERSION
    assert [each for each in study["dependencies"] if each.endswith(f"=={VERSION}")]


def test_the_same_versions_of_python_everywhere():
    project = tomllib.loads(text("pyproject.toml"))["project"]
    classifiers = [each.rsplit(" ", 1)[1] for each in project["classifiers"] if ":: Python :: 3." in each]
    matrix = re.search(r"python: \[(.*)\]", text(".github/workflows/test.yml"))[1]
    assert re.findall(r'"(3\.\d+)"', matrix) == classifiers == ["3.11", "3.12", "3.13", "3.14"]
    assert project["requires-python"] == f">={classifiers[0]}"
    assert re.search(r"FROM python:(\S+)-slim", text("Dockerfile"))[1] in classifiers


def test_the_image_copies_what_is_there_and_only_that():
    dockerfile, ignored = text("Dockerfile"), text(".dockerignore").splitlines()
    copied = [
        name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.M) for name in line.split()
    ]
    assert sorted(f"!{name}" for name in copied) == sorted(line for line in ignored if line.startswith("!"))
    assert all((ROOT / name).exists() for name in copied)
    assert 'ENTRYPOINT ["spider"]' in dockerfile
    assert dockerfile.index("USER spider") < dockerfile.index("RUN spider warmup")


def run(*command: object, **how) -> str:
    done = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, check=False, timeout=300, **how
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """The sdist, and the wheel that is built from it."""
    if not (find_spec("build") and find_spec("hatchling")):
        pytest.skip("build and hatchling are not installed (extra dev)")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


def test_what_is_in_them(dist):
    assert sorted(path.name for path in dist.iterdir()) == [
        f"spidertensor-{VERSION}-py3-none-any.whl",
        f"spidertensor-{VERSION}.tar.gz",
    ]
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        information = f"spidertensor-{VERSION}.dist-info"
        metadata = email.message_from_bytes(wheel.read(f"{information}/METADATA"))
        scripts = wheel.read(f"{information}/entry_points.txt").decode()
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    pages = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("dashboard/*")}
    assert modules | pages | {"spidertensor/py.typed"} == {name for name in names if information not in name}
    assert f"{information}/licenses/LICENSE" in names
    assert scripts.split() == ["[console_scripts]", "spider", "=", "spidertensor.cli:main"]
    assert metadata["Version"] == VERSION
    required = {re.split(r"[<>;]", each)[0]: each for each in metadata.get_all("Requires-Dist", [])}
    assert "<" in required["numba"]  # private parts of numba are used
    assert "llvmlite" in required
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        packed = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "docs/mathematics.md"} <= packed
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py")} <= packed
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "study").rglob("*.py")} <= packed
    assert "conftest.py" in packed
    assert not [name for name in packed if "__pycache__" in name or name.endswith((".nbi", ".nbc"))]


@pytest.fixture(scope="module")
def study_wheel(dist, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT / "study")
    return next(folder.glob("*.whl"))


def opened(wheel: Path) -> tuple[list[str], email.message.Message]:
    """The files of a wheel, and its metadata."""
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        return names, email.message_from_bytes(files.read(metadata))


def required(metadata: email.message.Message) -> set[str]:
    """The packages that are always installed beside this one, those of extras aside."""
    always = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    return {re.split(r"[<>=!~;\[ ]", each)[0] for each in always}


STUDY_ONLY = (
    "competitors", "baselines", "report", "registry", "grid", "rows", "datasets", "experiments", "results",
    "post", "svb_dtf", "svb_gptf", "ss_gptf", "gptf", "cp_wopt", "costco", "pbp", "claims",
)  # fmt: skip


def test_the_product_has_no_competitor_and_no_report_in_it(dist, study_wheel):
    product, _ = opened(next(dist.glob("*.whl")))
    study, _ = opened(study_wheel)
    assert not [name for name in product if "study" in name]
    parts = {part.partition(".")[0] for name in product for part in name.split("/")}
    assert not parts & set(STUDY_ONLY)
    modules = {str(path.relative_to(ROOT / "study" / "src")) for path in (ROOT / "study/src").rglob("*.py")}
    assert modules <= set(study)
    assert {"spidertensor_study/competitors/post.py", "spidertensor_study/report/page.py"} <= modules
    assert not [name for name in study if name.startswith("spidertensor/")]


def test_the_study_is_private_and_owns_what_only_it_needs(dist, study_wheel):
    _, product = opened(next(dist.glob("*.whl")))
    names, study = opened(study_wheel)
    assert "Private :: Do Not Upload" in study.get_all("Classifier", [])
    assert not [each for each in product.get_all("Classifier", []) if each.startswith("Private")]
    assert {"spidertensor", "optax", "pooch"} <= required(study)
    assert "spidertensor" not in required(product)
    everything = {re.split(r"[<>=!~;\[ ]", each)[0] for each in product.get_all("Requires-Dist", [])}
    assert "numba" in required(product)
    # River is an extra of the product, too: spidertensor.river adapts to it
    assert not everything & {"optax", "pooch", "implicit", "scikit-surprise", "myfm", "lightgbm"}
    with zipfile.ZipFile(study_wheel) as files:
        (scripts,) = [name for name in names if name.endswith("entry_points.txt")]
        assert "spider-study = spidertensor_study.cli:main" in files.read(scripts).decode()


@pytest.mark.slow
def test_the_wheel_runs_in_an_environment_of_its_own(dist, tmp_path):
    """Only the wheel is installed; what it depends on is taken from the environment of this test."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", "--no-index", next(dist.glob("*.whl")))
    run(sys.executable, "-m", "pip", "--python", python, *install)
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # searched after the wheel's own folder
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    how = {"cwd": tmp_path, "env": environment}
    assert run(venv / "bin" / "spider", "--version", **how) == f"spider {VERSION}\n"
    program = """
from spidertensor import SpiderRegressor
from spidertensor.spider.likelihoods.kernel import GAUSSIAN, evidence
print(SpiderRegressor.__name__, round(evidence(GAUSSIAN, 0.0, 0.0, 1.0, 1.0)[0], 4))
import spidertensor; print(spidertensor.__file__)
"""
    answer, where = run(python, "-c", program, **how).splitlines()
    assert answer == "SpiderRegressor -1.2655"
    assert Path(where).is_relative_to(own)
