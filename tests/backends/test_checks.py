"""The minimum versions of a manifest are compared as numbers."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from antiphon.backends.registry import check_requires
from antiphon.errors import UnsupportedError

INSTALLED = {"torch": "2.13.0+cpu", "moshi": "0.2.13", "odd": "unknown"}


def find_version(module: str) -> str:
    if module not in INSTALLED:
        raise PackageNotFoundError(module)
    return INSTALLED[module]


@pytest.mark.parametrize(
    "requires",
    [{}, {"torch": "2.9"}, {"torch": "2.13"}, {"torch": "", "moshi": "0.2.13"}, {"moshi": "0.2.9"}],
)
def test_what_is_new_enough_passes(requires: dict[str, str]) -> None:
    check_requires("torch", requires, find_version)


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        (
            {"torch": "2.13.1"},
            "model on the torch backend needs torch 2.13.1, but 2.13.0+cpu is installed",
        ),
        ({"torch": "3"}, "needs torch 3, but 2.13.0"),
        ({"moshi": "0.10"}, "needs moshi 0.10, but 0.2.13 is installed"),
        ({"odd": "1"}, "needs odd 1, but unknown is installed"),
        ({"torchao": "0.15"}, "needs torchao 0.15, which is not installed"),
        ({"torchao": ""}, "needs torchao, which is not installed"),
    ],
)
def test_what_is_old_or_missing_is_named_with_both_versions(requires: dict[str, str], message: str) -> None:
    with pytest.raises(UnsupportedError) as refused:
        check_requires("torch", requires, find_version)
    assert message in str(refused.value)
