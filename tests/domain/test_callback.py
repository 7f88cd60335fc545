"""Tokens of callbacks: what is handed out is read back, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pawl_server.domain.callback import PREFIX, callback_base, read_token
from pawl_server.domain.errors import InvalidField

ids = st.from_regex(r"[A-Za-z0-9_.-]{1,128}", fullmatch=True)
numbers = st.integers(1, (1 << 53) - 1)


@pytest.mark.spec("R-CALLBACK-3")
@given(instance_id=ids, incarnation=numbers, turn=numbers, key=ids)
def test_a_token_names_its_callback(instance_id: str, incarnation: int, turn: int, key: str) -> None:
    base = callback_base("default", instance_id, incarnation, turn)
    assert base.startswith(PREFIX)
    assert len(base) <= 256
    assert read_token(base + key, "default") == (instance_id, incarnation, turn, key)
    with pytest.raises(InvalidField, match="token"):
        read_token(base + key, "other")


@pytest.mark.spec("R-CALLBACK-3")
def test_anything_else_is_refused() -> None:
    token = callback_base("default", "a", 1, 1) + "key"
    bad = ["", "x", "cb1", "cb1.", "cb1.key", "cb1!.key", token + "!", token.partition(".")[0], "x" + token]
    bad += [
        token.replace(".", ""),
        token[:-3],
        f"cb1{'A' * 600}.key",
        "cb1AAAA.key",
        "cb1äöü.key",
        f"cb1{'A' * 21}.k",
    ]
    bad += [
        token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :] for at in range(token.index("."))
    ]
    for each in bad:
        with pytest.raises(InvalidField) as refused:
            read_token(each, "default")
        assert refused.value.field == "token", each
