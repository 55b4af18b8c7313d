"""What makes an estimator one of scikit-learn's, without importing scikit-learn.

Importing its base classes takes three quarters of the start of a script, since they load scipy.stats and
pandas. scikit-learn asks for methods, not for ancestors, so these are the methods; it is imported where it
calls one of them, and by then it is there.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from spidertensor.estimator.groups import GROUPS, group_of
from spidertensor.estimator.old_names import new_paths


class ScikitLearn:
    """Parameters, their text, tags. What a subclass has in its __init__ are its parameters."""

    _inside: ClassVar[Mapping[str, tuple[str, ...]]]  # the parameters that it has in groups

    @classmethod
    def _get_param_names(cls) -> list[str]:
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return sorted(each.name for each in parameters if each.kind is not each.VAR_KEYWORD)

    @classmethod
    def _get_group_names(cls) -> dict[str, tuple[str, ...]]:
        names = cls._get_param_names()
        return {group: inside for group, inside in cls._inside.items() if group in names}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name. deep: those of the prior and the inference too, as `prior__bias_var`."""
        params = {name: getattr(self, name) for name in self._get_param_names()}
        for group, inside in self._get_group_names().items() if deep else ():
            kind = GROUPS[group]
            given = kind() if params[group] is None else params[group]
            if isinstance(given, kind):
                params |= {f"{group}__{name}": getattr(given, name) for name in inside}
        return params

    def set_params(self, **params: Any) -> Self:
        """Change parameters; they take effect at the next fit. `prior__bias_var=0.2` changes one of a prior,
        of this estimator alone."""
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
        for name in sorted(params, key=lambda name: name in paths):  # a group before what is in it
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
        """No metadata is asked for: there are no sample weights."""
        from sklearn.utils.metadata_routing import MetadataRequest

        return MetadataRequest(owner=self)  # pyright: ignore[reportArgumentType]

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=True),
            input_tags=InputTags(string=True, categorical=True),
        )


class ScikitLearnRegressor(ScikitLearn):
    _estimator_type = "regressor"

    def score(self, X: Any, y: Any) -> float:
        """R²: 1 is perfect, 0 is as good as the mean of y."""
        from sklearn.metrics import r2_score

        return float(r2_score(y, self.predict(X)))  # pyright: ignore[reportAttributeAccessIssue]

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import RegressorTags

        tags = super().__sklearn_tags__()
        tags.estimator_type = "regressor"
        # scikit-learn's tests predict ids that were never learned
        tags.regressor_tags = RegressorTags(poor_score=True)
        return tags


class ScikitLearnClassifier(ScikitLearn):
    _estimator_type = "classifier"

    def score(self, X: Any, y: Any) -> float:
        """Share of labels that are predicted right."""
        return float(np.mean(np.asarray(y) == self.predict(X)))  # pyright: ignore[reportAttributeAccessIssue]

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()
        tags.estimator_type = "classifier"
        tags.classifier_tags = ClassifierTags(multi_class=False, poor_score=True)
        return tags
