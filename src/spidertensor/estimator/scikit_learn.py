"""The scikit-learn estimator interface, without importing scikit-learn.

Its base classes load scipy.stats and pandas, which would take three quarters of a script's startup time.
scikit-learn needs the methods, not the base classes. Methods that need scikit-learn import it themselves.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from spidertensor.estimator.groups import GROUPS, group_of
from spidertensor.estimator.old_names import new_paths


class ScikitLearn:
    """Parameters, repr and tags. The arguments of a subclass's __init__ are its parameters."""

    _metadata_request: Any  # set by set_fit_request and its like

    _inside: ClassVar[Mapping[str, tuple[str, ...]]]  # the parameters in each group

    @classmethod
    def _get_param_names(cls) -> list[str]:
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return sorted(each.name for each in parameters if each.kind is not each.VAR_KEYWORD)

    @classmethod
    def _get_group_names(cls) -> dict[str, tuple[str, ...]]:
        names = cls._get_param_names()
        return {group: inside for group, inside in cls._inside.items() if group in names}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name. deep: include those of prior and inference, as `prior__bias_var`."""
        params = {name: getattr(self, name) for name in self._get_param_names()}
        for group, inside in self._get_group_names().items() if deep else ():
            kind = GROUPS[group]
            given = kind() if params[group] is None else params[group]
            if isinstance(given, kind):
                params |= {f"{group}__{name}": getattr(given, name) for name in inside}
        return params

    def set_params(self, **params: Any) -> Self:
        """Change parameters, from the next fit on.

        `prior__bias_var=0.2` changes one parameter of the prior, for this estimator only.
        """
        names, groups = self._get_param_names(), self._get_group_names()
        old = [name for inside in groups.values() for name in inside if name not in names]
        params = new_paths(params, old)
        paths = {f"{group}__{name}": (group, name) for group, inside in groups.items() for name in inside}
        for name in params:
            if name not in names and name not in paths:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {self}. Valid parameters are: "
                    f"{[*names, *paths]!r}."
                )
        for name in sorted(params, key=lambda name: name in paths):  # groups first, then their parameters
            if name in paths:
                group, own = paths[name]
                given: Any = group_of(group, getattr(self, group))
                setattr(self, group, replace(given, **{own: params[name]}))
            else:
                setattr(self, name, params[name])
        return self

    def __repr__(self) -> str:
        """The parameters that differ from their defaults."""
        defaults = inspect.signature(type(self).__init__).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params(deep=False).items()
            if repr(value) != repr(defaults[name].default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def get_metadata_routing(self) -> Any:
        """Which methods ask for sample_weight when scikit-learn routes metadata."""
        if "_metadata_request" in vars(self):  # clones have it too
            return copy.deepcopy(self._metadata_request)
        from sklearn.utils.metadata_routing import MetadataRequest

        requests: Any = MetadataRequest(owner=self)  # pyright: ignore[reportArgumentType]
        for method in ("fit", "partial_fit", "score"):
            getattr(requests, method).add_request(param="sample_weight", alias=None)
        return requests

    def _set_request(self, method: str, sample_weight: bool | str | None) -> Self:
        requests = self.get_metadata_routing()
        getattr(requests, method).add_request(param="sample_weight", alias=sample_weight)
        self._metadata_request = requests
        return self

    def set_fit_request(self, *, sample_weight: bool | str | None) -> Self:
        """Ask scikit-learn's tools to pass sample_weight to `fit`: True, False, or its name there."""
        return self._set_request("fit", sample_weight)

    def set_partial_fit_request(self, *, sample_weight: bool | str | None) -> Self:
        """`set_fit_request` for `partial_fit`."""
        return self._set_request("partial_fit", sample_weight)

    def set_score_request(self, *, sample_weight: bool | str | None) -> Self:
        """`set_fit_request` for `score`."""
        return self._set_request("score", sample_weight)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=True),
            input_tags=InputTags(string=True, categorical=True),
        )


class ScikitLearnRegressor(ScikitLearn):
    _estimator_type = "regressor"

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the predictions: 1 is perfect, 0 is as good as predicting the mean of y."""
        from sklearn.metrics import r2_score

        predicted = self.predict(X)  # pyright: ignore[reportAttributeAccessIssue]
        return float(r2_score(y, predicted, sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import RegressorTags

        tags = super().__sklearn_tags__()
        tags.estimator_type = "regressor"
        # scikit-learn's checks predict ids that were never learned
        tags.regressor_tags = RegressorTags(poor_score=True)
        return tags


class ScikitLearnClassifier(ScikitLearn):
    _estimator_type = "classifier"

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of labels predicted correctly."""
        right = np.asarray(y) == self.predict(X)  # pyright: ignore[reportAttributeAccessIssue]
        return float(np.average(right, weights=sample_weight))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()
        tags.estimator_type = "classifier"
        tags.classifier_tags = ClassifierTags(multi_class=False, poor_score=True)
        return tags
