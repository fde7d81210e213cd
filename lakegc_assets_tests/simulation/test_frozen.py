"""Frozen dataclasses that the simulation makes in less time are what they are elsewhere."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any
from unittest import mock

import pytest

from lakegc_assets_tests.simulation.frozen import changed, init_of


@dataclass(frozen=True)
class _One:
    name: str
    count: int = 3
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("less than nothing")


def test_it_is_made_as_elsewhere_and_stays_frozen() -> None:
    cases: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("a",), {}),
        (("a", 4), {"notes": ["x"]}),
        ((), {"count": 5, "name": "b"}),
    ]
    usual = [_One(*given, **named) for given, named in cases]
    with mock.patch.object(_One, "__init__", init_of(_One)):
        made = [_One(*given, **named) for given, named in cases]
        assert made == usual
        assert [vars(one) for one in made] == [vars(one) for one in usual]
        assert made[0].notes is not made[2].notes
        with pytest.raises(TypeError, match="name"):
            _One()  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="less than nothing"):
            _One("a", -1)
        with pytest.raises(FrozenInstanceError):
            made[0].count = 4  # type: ignore[misc]


def test_it_is_changed_as_elsewhere() -> None:
    one = _One("a", 4, ["x"])
    assert changed(one, name="b") == replace(one, name="b")
    assert changed(one, count=5).notes is one.notes
    assert one == _One("a", 4, ["x"])
    with pytest.raises(ValueError, match="less than nothing"):
        changed(one, count=-1)
    with pytest.raises(TypeError, match="other"):
        changed(one, other=1)
