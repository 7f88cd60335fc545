"""Type settings in all partitions."""

from __future__ import annotations

import pytest

from pawl_server.domain.errors import Refused
from pawl_server.engine import Engine
from pawl_server.store import scripts_gen
from pawl_server.store.errors import StoreUnavailable
from pawl_server.store.records import TYPE_DEFAULTS, TYPE_FIELDS
from tests.support.hand import Hand
from tests.support.items import send_item
from tests.support.wait import wait_until


async def revisions(engine: Engine, name: str) -> list[int]:
    """Revision of a type in each partition; 0 where it is not stored."""
    found: list[int] = []
    for partition in engine.store.partitions:
        result = await scripts_gen.get_type(partition, items=[scripts_gen.GetTypeItem(name)])
        reply = result.replies[0]
        found.append(reply.revision if isinstance(reply, scripts_gen.GetTypeOk) else 0)
    return found


@pytest.mark.spec("R-TYPE-1")
async def test_settings_hold_in_every_partition(engine: Engine) -> None:
    await engine.types.put("t", {"max_attempts": 1})
    assert await revisions(engine, "t") == [1, 1]
    hand = Hand(engine)
    for instance_id in ("a", "b", "c", "d"):
        await engine.inbox.send(send_item(instance_id, create=True))
        await hand.fail(instance_id, final=False)
        turn = await engine.turns.get(instance_id, 1)
        assert turn.state == 10, "one attempt is all that the type allows"


@pytest.mark.spec("R-TYPE-2")
async def test_what_a_crash_left_behind_is_made_good(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dies(*_: object) -> None:
        raise StoreUnavailable("the server died here")

    for at in range(150):
        await engine.types.put(f"n{at:03}", {})
    with monkeypatch.context() as patch:
        patch.setattr(engine.types, "_copy", dies)
        for name in ("t", "u", "n149"):
            with pytest.raises(StoreUnavailable):
                await engine.types.put(name, {"max_attempts": 9}, request_id="r")
    assert sorted(await revisions(engine, "t")) == [0, 1]
    listed, _ = await engine.types.list(100, "")
    assert len(listed) == 100
    assert (await engine.types.get("t")).revision == 1, "its home has decided"
    assert (await engine.types.put("t", {"max_attempts": 9}, request_id="r")).revision == 1
    assert await revisions(engine, "t") == [1, 1], "a repeat copies again"
    assert await engine.types.sync() == 2
    assert await revisions(engine, "u") == [1, 1]
    assert await revisions(engine, "n149") == [2, 2]
    assert await engine.types.sync() == 0


@pytest.mark.parametrize("field", TYPE_FIELDS)
@pytest.mark.spec("R-TYPE-4")
async def test_every_setting_is_shown(engine: Engine, field: str) -> None:
    """Who reads a type, changes one setting and stores it changes no other."""
    before = await engine.types.get("t")
    default = TYPE_DEFAULTS[field]
    other = "\0NO\0" if isinstance(default, str) else 0.5 if field == "jitter" else default + 1
    stored = await engine.types.put("t", {field: other})
    shown = await engine.types.get("t")
    assert shown == stored
    shown.ClearField("revision")
    shown.ClearField("update_time")
    assert shown != before


async def test_the_settings_of_a_first_frame_fill_only_what_is_not_there(engine: Engine) -> None:
    await engine.types.ensure("t", {"max_attempts": 5})
    await engine.types.ensure("t", {"max_attempts": 6})
    assert (await engine.types.get("t")).max_attempts == 5


async def test_a_late_copy_of_an_older_revision_changes_nothing(engine: Engine) -> None:
    await engine.types.put("t", {"max_attempts": 5})
    old = (
        await scripts_gen.get_type(engine.store.partitions[0], items=[scripts_gen.GetTypeItem("t")])
    ).replies[0]
    assert isinstance(old, scripts_gen.GetTypeOk)
    await engine.types.put("t", {"max_attempts": 6})
    await engine.types._copy("t", 1, old.settings, list(engine.store.partitions))
    assert (await engine.types.get("t")).max_attempts == 6
    with pytest.raises(Refused):
        await engine.types.put("t", {}, expected=1)


@pytest.mark.spec("R-TYPE-5")
async def test_what_could_not_be_listed_is_listed_later(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real = scripts_gen.name_type

    async def away(*_: object, name: str, **__: object) -> None:
        calls.append(name)
        raise StoreUnavailable("away")

    async def names() -> list[str]:
        return [one.name for one in (await engine.types.list(100, ""))[0]]

    monkeypatch.setattr(scripts_gen, "name_type", away)
    engine.types.see("t")
    await wait_until(lambda: calls)
    assert await names() == []
    monkeypatch.setattr(scripts_gen, "name_type", real)
    await engine.types.sync()
    assert await names() == ["t"]
    monkeypatch.setattr(scripts_gen, "name_type", away)
    engine.types.see("t")
    await engine.types.sync()
    assert calls == ["t"], "nothing is asked twice"
    home = engine.store.partition_of("t")
    monkeypatch.setattr(home, "gen", home.gen + 1)
    await engine.types.sync()
    assert calls == ["t", "t"], "a store that lost its newest writes may have lost this one"
