"""prior=Prior(...) and inference=Inference(...): what scikit-learn does with them, and names of before."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import spidertensor
import spidertensor.sources
from spidertensor import (
    CheckpointError,
    Inference,
    Prior,
    SpiderClassifier,
    SpiderRegressor,
    checkpoint,
    cluster,
    river,
    testing,
)
from spidertensor.estimator.groups import GROUP_OF, paths
from streams import entries

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"rank": 2, "hidden": (4,), "committee": 2, "batch_size": 16}
BOTH = pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
# every parameter that was flat, with a value other than its default
OTHER = {
    "rho0": 0.6, "slab_var": 0.5, "factor_var": 0.7, "bias_var": 0.2, "multilinear_var": 0.3,
    "multilinear_start": 0.1, "curvature": True, "clip": 2.0, "node_noise": False, "noise_memory": 50.0,
}  # fmt: skip
OF_VALUES = ("clip", "node_noise", "noise_memory")


def entries_for(kind, n=120):
    return entries(n, 6, noise=0.3, binary=kind is SpiderClassifier)


def learned(model) -> dict[str, bytes]:
    fitted = model.fit(*entries_for(type(model)))._fitted()
    return {name: array.tobytes() for name, array in checkpoint.flatten(fitted.state).items()}


def changes(kind) -> dict:
    return {name: value for name, value in OTHER.items() if kind is SpiderRegressor or name not in OF_VALUES}


def test_all_that_was_flat_is_tried_here():
    assert OTHER.keys() == GROUP_OF.keys()


# --- scikit-learn


@BOTH
def test_set_params_changes_one_estimator_alone(kind):
    shared = Prior(slab_var=0.5)
    one, other, plain = kind(prior=shared), kind(prior=shared), kind()
    one.set_params(prior__bias_var=0.2, inference__curvature=True)
    assert one.prior == Prior(slab_var=0.5, bias_var=0.2)
    assert other.prior is shared
    assert shared == Prior(slab_var=0.5)
    assert plain.set_params(prior__bias_var=0.2).prior == Prior(bias_var=0.2)
    assert kind().prior is None
    assert kind().get_params()["prior__bias_var"] == Prior().bias_var == Prior.bias_var


@BOTH
def test_a_group_and_what_is_in_it_in_one_call(kind):
    model = kind().set_params(prior__rho0=0.5, prior=Prior(bias_var=0.2))
    assert model.prior == Prior(rho0=0.5, bias_var=0.2)
    assert model.set_params(prior=None, prior__rho0=0.4).prior == Prior(rho0=0.4)


def test_groups_do_not_change():
    for group, name in ((Prior(), "bias_var"), (Inference(), "clip")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(group, name, 1.0)


@BOTH
def test_clone_copy_and_repr(kind):
    model = kind(prior=Prior(bias_var=0.2)).set_params(inference__curvature=True)
    text = f"{kind.__name__}(inference=Inference(curvature=True), prior=Prior(bias_var=0.2))"
    for twin in (model, clone(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert repr(twin) == text
        assert twin.get_params() == model.get_params()
    clone(model).set_params(prior__bias_var=0.5)
    assert model.prior == Prior(bias_var=0.2)
    assert clone(Prior(bias_var=0.2)) == Prior(bias_var=0.2)
    assert eval(repr(Prior(rho0=0.5))) == Prior(rho0=0.5)
    assert repr(kind()) == f"{kind.__name__}()"


@BOTH
def test_grid_search(kind):
    X, y = entries_for(kind, 240)
    grid = {"prior__bias_var": [0.001, 5.0], "inference__curvature": [False, True]}
    search = GridSearchCV(kind(**SMALL), grid, cv=KFold(2), error_score="raise").fit(X, y)
    assert search.best_params_.keys() == grid.keys()
    assert search.best_estimator_.prior == Prior(bias_var=search.best_params_["prior__bias_var"])
    assert len(set(search.cv_results_["mean_test_score"])) > 1
    pipeline = make_pipeline(FunctionTransformer(), kind(**SMALL))
    name = pipeline.steps[-1][0]
    pipeline.set_params(**{f"{name}__prior__bias_var": 0.4})
    assert pipeline[-1].prior == Prior(bias_var=0.4)
    assert pipeline.get_params()[f"{name}__prior__bias_var"] == 0.4


# --- what is wrong is told


@BOTH
def test_unknown_names(kind):
    with pytest.raises(TypeError, match="learning_rate"):
        kind(learning_rate=0.1)
    with pytest.raises(TypeError, match="learning_rate"):
        Prior(learning_rate=0.1)  # pyright: ignore[reportCallIssue]
    for name in ("learning_rate", "prior__learning_rate", "prior__clip", "prior__", "rank__bias_var"):
        with pytest.raises(ValueError, match=f"Invalid parameter '{name}'"):
            kind().set_params(**{name: 0.1})


@pytest.mark.parametrize("name", OF_VALUES)
def test_a_classifier_has_nothing_of_continuous_values(name):
    with pytest.raises(TypeError, match=name):
        SpiderClassifier(**{name: OTHER[name]})
    for path in (name, f"inference__{name}"):
        with pytest.raises(ValueError, match="Invalid parameter"):
            SpiderClassifier().set_params(**{path: OTHER[name]})
    assert not hasattr(SpiderClassifier(), name)
    model = SpiderClassifier(**SMALL, inference=Inference(**{name: OTHER[name]}))
    with pytest.raises(ValueError, match=f"{name} has no meaning for this estimator"):
        model.fit(*entries_for(SpiderClassifier))


@BOTH
@pytest.mark.parametrize("value", [0.2, {"bias_var": 0.2}, Prior, Inference(), "prior"])
def test_wrong_types(kind, value):
    model = kind(**SMALL, prior=value)
    assert model.get_params()["prior"] is value
    with pytest.raises(ValueError, match="prior must be Prior"):
        model.fit(*entries_for(kind))
    with pytest.raises(ValueError, match="prior must be Prior"):
        model.set_params(prior__bias_var=0.2)
    with pytest.raises(ValueError, match="inference must be Inference"):
        kind(inference=Prior()).fit(*entries_for(kind))
    with pytest.raises(ValueError, match="bias_var must be a number"):
        kind(prior=Prior(bias_var="wide")).fit(*entries_for(kind))  # pyright: ignore[reportArgumentType]


def test_only_the_first_parameters_have_a_place():
    assert SpiderRegressor(3, (4,), "tanh").get_params()["activation"] == "tanh"
    with pytest.raises(TypeError, match="positional"):
        SpiderRegressor(3, (4,), "tanh", True)  # pyright: ignore[reportCallIssue]


# --- names of before


@BOTH
def test_old_names_give_the_same_model_and_name_the_new_ones(kind):
    for name, value in changes(kind).items():
        group = GROUP_OF[name]
        new = kind(**SMALL).set_params(**{f"{group}__{name}": value})
        with pytest.warns(FutureWarning, match=rf"write {group}=\w+\({name}={value}\)") as told:
            old = kind(**SMALL, **{name: value})
        assert told[0].filename == __file__
        assert old.get_params() == new.get_params()
        with pytest.warns(FutureWarning, match=f"write {group}__{name}=") as told:
            assert kind(**SMALL).set_params(**{name: value}).get_params() == new.get_params()
        assert told[0].filename == __file__
        with pytest.warns(FutureWarning, match=f"{group}__{name}"):
            assert getattr(new, name) == value
        with pytest.warns(FutureWarning, match=f"{group}__{name}"):
            setattr(new, name, 7)
        assert new.get_params()[f"{group}__{name}"] == 7
    with pytest.warns(FutureWarning):
        old = kind(**SMALL, **changes(kind))
    new = kind(**SMALL).set_params(**paths(changes(kind)))
    assert learned(old) == learned(new) != learned(kind(**SMALL))


@BOTH
def test_old_names_beside_new_ones(kind):
    with pytest.warns(FutureWarning):
        assert kind(prior=Prior(rho0=0.5), bias_var=0.2).prior == Prior(rho0=0.5, bias_var=0.2)
    with pytest.warns(FutureWarning):
        paper = kind.paper(rho0=0.7, bias_var=0.2)
    assert paper.prior == Prior(rho0=0.7, bias_var=0.2)
    assert paper.inference == kind.paper().inference


def test_old_names_in_a_grid():
    with pytest.warns(FutureWarning, match="prior__bias_var"):
        search = GridSearchCV(SpiderRegressor(**SMALL), {"bias_var": [0.1]}, cv=KFold(2)).fit(
            *entries_for(SpiderRegressor)
        )
    assert search.best_estimator_.prior == Prior(bias_var=0.1)


def test_a_subclass_with_parameters_of_its_own():
    class Mine(SpiderRegressor):
        def __init__(self, rank=3, bias_var=0.1):
            super().__init__(rank, (4,), prior=Prior(bias_var=bias_var), committee=1)

    with pytest.warns(FutureWarning, match="prior__bias_var"):
        assert clone(Mine(bias_var=0.3)).prior == Prior(bias_var=0.3)


@BOTH
def test_methods_that_are_no_longer_public(kind):
    X, y = entries_for(kind)
    model = kind(**SMALL)
    calls = {
        "learn_numbered": lambda: model.learn_numbered(X, y).update,
        "rule_of": lambda: model.rule_of(["a", "b"]),
        "warn_at_end": model.warn_at_end,
        "parse_id": lambda: model.parse_id(0, "3"),
        "parse_ids": lambda: model.parse_ids(0, ["3"]),
    }
    answers = []
    for name, call in calls.items():
        with pytest.warns(FutureWarning, match=rf"{name}\(\) is accepted until") as told:
            answers.append(call())
        assert told[0].filename == __file__
    assert answers[1:] == [None, None, 3, [3]]
    np.testing.assert_array_equal(answers[0].mean, kind(**SMALL).learn(X, y).mean)


def test_a_flat_pickle():
    """As one of before, whose attributes were flat."""
    model = SpiderRegressor(**SMALL, prior=Prior(bias_var=0.2))
    state = model.__getstate__()
    del state["prior"]
    twin = SpiderRegressor.__new__(SpiderRegressor)
    twin.__setstate__(state | {"bias_var": 0.2, "clip": 2.0})
    assert twin.get_params() == model.set_params(inference__clip=2.0).get_params()


# --- files


@BOTH
def test_files_are_flat_and_load_as_groups(kind, tmp_path):
    path = tmp_path / "model"
    model = kind(**SMALL).set_params(**paths(changes(kind))).fit(*entries_for(kind))
    model.save(path)
    params = checkpoint.load(path).sections["model"]["params"]
    assert params.keys() == kind._flat_names() - {"levels"}  # only ordinal values have them
    assert not {"prior", "inference"} & params.keys()
    assert {name: params[name] for name in changes(kind)} == changes(kind)
    assert list(params) == sorted(params)
    back = kind.load(path)
    assert back.get_params() == model.get_params()
    assert (back.prior, back.inference) == (model.prior, model.inference)
    back.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    kind(**SMALL).fit(*entries_for(kind)).save(path)
    assert repr(kind.load(path)) == repr(kind(**SMALL))


def test_a_file_with_groups_is_no_model(tmp_path):
    SpiderRegressor(**SMALL).fit(*entries_for(SpiderRegressor)).save(tmp_path / "model")
    file = checkpoint.load(tmp_path / "model")
    for wrong in ({"prior": None}, {"prior": {"bias_var": 0.2}}, {"factor_var": True}, {"curvature": 0}):
        sections = json.loads(json.dumps(file.sections))
        sections["model"]["params"].update(wrong)
        checkpoint.save(tmp_path / "wrong", file.arrays, sections)
        with pytest.raises(CheckpointError):
            spidertensor.load(tmp_path / "wrong")


def test_dicts_of_a_committee_are_flat():
    own = [{}, {"bias_var": 0.2, "node_noise": False, "memory": 50}]
    model = SpiderRegressor(**SMALL | {"committee": own}).fit(*entries_for(SpiderRegressor))
    assert [member.own for member in model.members_] == own
    with pytest.raises(ValueError, match="cannot have its own 'prior'"):
        SpiderRegressor(committee=[{"prior": Prior()}]).fit(*entries_for(SpiderRegressor))


# --- what is public


def test_the_page_of_the_api_lists_what_is_exported():
    page = (ROOT / "docs" / "site" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: ([\w.]+)\.(\w+)$", page, re.MULTILINE)
    found = [getattr(importlib.import_module(module), name) for module, name in listed]
    exported = [getattr(spidertensor, name) for name in spidertensor.__all__]
    exported += [getattr(module, name) for module in (cluster, river, testing) for name in module.__all__]
    exported += [spidertensor.sources.open, spidertensor.sources.OpenStream]
    assert len(found) == len(exported) == len(set(exported))
    assert set(found) == set(exported)


def test_nothing_of_ours_uses_old_names():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (SpiderRegressor, SpiderClassifier):
            model = kind.paper(**{**SMALL, "committee": 1}).fit(*entries_for(kind))
            pickle.loads(pickle.dumps(clone(model)))
