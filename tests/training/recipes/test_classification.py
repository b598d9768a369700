"""Labels to classes, and the metrics."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features
from sklearn.metrics import f1_score

from cpudist.errors import UserError
from cpudist.training.recipes import classification


def test_names_of_labels() -> None:
    def names(values: list[object], kind: object = None) -> dict[object, str]:
        return classification.names_by_value(
            Dataset.from_dict({"label": values}, kind and Features(label=kind)), "label"
        )

    assert list(names([10, 2, 2, -1]).values()) == ["-1", "2", "10"]
    assert list(names(["b", "a", "10", "9"]).values()) == ["9", "10", "a", "b"]
    assert names([2, 0], ClassLabel(names=["x", "y", "a"])) == {0: "x", 2: "a"}
    for values, kind, part in [
        (["a", None], None, "no label"),
        (["a", ""], None, "no label"),
        ([0.5, 1.0], None, "float64"),
        ([-1, -1], ClassLabel(names=["x"]), "which is no label"),
        ([[1]], None, "strings or whole numbers"),
    ]:
        with pytest.raises(UserError, match=part):
            names(values, kind)


def test_classes_of_training_and_of_models() -> None:
    assert classification.choose_names(["a", "b"], ["b"], ["LABEL_0", "LABEL_1"]) == ["a", "b"]
    assert classification.choose_names(["a", "b"], [], ["b", "a"]) == ["b", "a"], "as the model has learnt them"
    assert classification.choose_names([], ["a"], ["b", "a"]) == ["b", "a"]
    assert classification.choose_names([], ["1"], ["no", "yes"]) == ["0", "1"]
    for train, evaluation, known, part in [
        (
            ["a", "b"],
            ["a", "c"],
            None,
            r"label 'c' is in the validation data, but not in the training data \(a, b\); train",
        ),
        (["a"], [], None, "only one label, 'a'"),
        ([], ["c"], ["a", "b"], r"label 'c' is unknown to the model \(a, b\); evaluate a"),
    ]:
        with pytest.raises(UserError, match=part):
            classification.choose_names(train, evaluation, known)


def test_macro_f1_is_scikit_learns() -> None:
    generator = np.random.default_rng(0)
    for classes in (2, 5, 30):
        truth, guess = generator.integers(classes, size=(2, 40))
        assert classification.macro_f1(truth, guess) == pytest.approx(f1_score(truth, guess, average="macro"))
    rows = {"labels": np.array([0, 1, 1, 3]), "predictions": np.array([0, 1, 0, 2])}
    assert classification.metrics(rows) == {"accuracy": 0.5, "f1": pytest.approx((2 / 3 + 2 / 3) / 4)}
