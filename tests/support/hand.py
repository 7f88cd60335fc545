"""A worker by hand: claims turns and ends them through the scripts, without a stream."""

from __future__ import annotations

from pawl_server.domain.payload import digest_of, to_blob
from pawl_server.engine import Engine
from pawl_server.store import scripts_gen
from pawl_server.store.records import ClaimedTurn, claimed_turn
from tests.support.api import TV

STRANGER = "stranger"
"""Run id of a server that is not the one under test."""


class Hand:
    """Works on `engine`'s store as the server `run`: hints go out as from that server."""

    def __init__(self, engine: Engine, run: str = STRANGER) -> None:
        self._engine = engine
        self._run = run

    async def claim(self, instance_id: str, tv: str = TV) -> ClaimedTurn:
        """Claims the head of an instance; it must be the oldest ready one of its partition."""
        partition = self._engine.store.partition_of(instance_id)
        item = scripts_gen.ClaimItem(tv, 1, f"{self._run}.1.1")
        result = await scripts_gen.claim(
            partition,
            now_ms=self._engine.now_ms,
            server=self._run,
            delivery_ms=60_000,
            max_bytes=1 << 20,
            items=[item],
        )
        (view,) = result.replies[0].turns
        claimed = claimed_turn(view)
        assert claimed.instance_id == instance_id
        return claimed

    async def finish(
        self,
        instance_id: str,
        reply: bytes = b"done",
        *,
        state: bytes | None = None,
        again: bytes | None = None,
    ) -> int:
        """Claims and completes the head; `again` is the message of a continuation. Returns the turn."""
        turn = await self.claim(instance_id)
        limits = self._engine.limits
        item = scripts_gen.FinishItem(
            id=instance_id,
            inc=turn.incarnation,
            turn=turn.turn,
            fence=turn.fence,
            n=1,
            digest=digest_of(reply),
            has_step=True,
            key="only",
            kind="step",
            output=to_blob("json", b"out"),
            step_digest=digest_of(b"out"),
            has_state=state is not None,
            state=to_blob("json", state or b""),
            has_reply=True,
            result=to_blob("json", reply),
            has_next=again is not None,
            next_digest=digest_of(again or b""),
            next_message=to_blob("json", again or b""),
            tv="",
            conn="",
        )
        result = await scripts_gen.finish(
            self._engine.store.partition_of(instance_id),
            now_ms=self._engine.now_ms,
            server=self._run,
            max_steps=limits.steps_per_turn,
            max_step=limits.step_output_bytes,
            max_turn=limits.turn_bytes,
            max_state=limits.state_bytes,
            max_reply=limits.reply_bytes,
            max_message=limits.message_bytes,
            delivery_ms=60_000,
            items=[item],
        )
        assert result.replies[0].word == "OK", result
        return turn.turn

    async def fail(self, instance_id: str, reason: str = "BROKEN", *, final: bool = True) -> int:
        """Claims the head and reports a failed attempt. Returns the turn."""
        turn = await self.claim(instance_id)
        item = scripts_gen.FailItem(
            id=instance_id,
            inc=turn.incarnation,
            turn=turn.turn,
            fence=turn.fence,
            n=1,
            digest=digest_of(reason.encode()),
            reason=reason,
            message="it broke",
            truncated=False,
            details=to_blob("json", b"{}"),
            final=final,
            delay_ms=-1,
            cause=b"",
            step_key="",
            step_policy=b"",
            op_position=0,
            op_key="",
            op_sequence=0,
            op_digest=b"",
            op_progress=b"",
            op_details=b"",
            op_resume=b"",
        )
        result = await scripts_gen.fail(
            self._engine.store.partition_of(instance_id),
            now_ms=self._engine.now_ms,
            server=self._run,
            items=[item],
        )
        assert result.replies[0].word == "OK", result
        return turn.turn
