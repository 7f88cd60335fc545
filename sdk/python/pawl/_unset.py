"""What stands for "not given" where None is a value."""

from __future__ import annotations

from typing import Any, Final


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final[Any] = _Unset()
"""Stands for "not given" where None is a value."""
