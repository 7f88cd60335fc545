"""Work streams: their frames, credits, limits, beats and ends."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import pytest

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.message_service_pb2 import AwaitTurnRequest
from pawl.v1.payload_pb2 import Payload
from pawl.v1.turn_pb2 import TURN_STATE_FAILED
from pawl_server.app import Handle
from pawl_server.delivery.frames import Outbox
from pawl_server.domain.limits import CREDITS, FRAME_BYTES, FRAME_ITEMS
from tests.support.api import CALL_S, Api
from tests.support.fault_proxy import FaultProxy
from tests.support.stream import Stream, checkpoint, finish, refusal, workflows
from tests.support.wait import wait_until

HELLO = pb.WorkHello(session="w", stream_ordinal=1, workflows=workflows())


async def refused_start(api: Api, first: pb.WorkRequest) -> tuple[str, str, str]:
    """How the server refuses a first frame: code, reason, field."""
    stream = Stream(api)
    await stream._call.write(first)
    problem = await stream.problem()
    return problem.code, problem.reason, problem.metadata.get("field", "")


@pytest.mark.spec("R-WORK-1")
async def test_a_first_frame_without_hello_is_refused(api: Api) -> None:
    expected = ("INVALID_ARGUMENT", "INVALID_FIELD", "hello")
    assert await refused_start(api, pb.WorkRequest(credits_total=1)) == expected


@pytest.mark.spec("R-WORK-1")
async def test_a_stream_that_ends_before_its_first_frame_is_refused(api: Api) -> None:
    stream = Stream(api)
    await stream._call.done_writing()
    assert (await stream.problem()).metadata == {"field": "hello"}


@pytest.mark.parametrize(
    ("field", "hello"),
    [
        ("hello.session", pb.WorkHello(stream_ordinal=1, workflows=workflows())),
        ("hello.session", pb.WorkHello(session="a b", stream_ordinal=1, workflows=workflows())),
        ("hello.stream_ordinal", pb.WorkHello(session="w", workflows=workflows())),
        ("hello.workflows", pb.WorkHello(session="w", stream_ordinal=1)),
        ("hello.workflows", pb.WorkHello(session="w", stream_ordinal=1, workflows=workflows(*"a" * 257))),
        (
            "hello.workflows[0].workflow_type",
            pb.WorkHello(session="w", stream_ordinal=1, workflows=[pb.WorkflowRef(version="v1")]),
        ),
        (
            "hello.workflows[0].version",
            pb.WorkHello(session="w", stream_ordinal=1, workflows=[pb.WorkflowRef(workflow_type="t")]),
        ),
        (
            "hello.max_frame_bytes",
            pb.WorkHello(session="w", stream_ordinal=1, workflows=workflows(), max_frame_bytes=65_535),
        ),
        (
            "hello.labels",
            pb.WorkHello(session="w", stream_ordinal=1, workflows=workflows(), labels={"k": "v" * 129}),
        ),
    ],
)  # fmt: skip
async def test_a_bad_hello_names_its_field(api: Api, field: str, hello: pb.WorkHello) -> None:
    expected = ("INVALID_ARGUMENT", "INVALID_FIELD", field)
    assert await refused_start(api, pb.WorkRequest(hello=hello)) == expected


async def test_hello_belongs_in_the_first_frame_only(api: Api) -> None:
    async with Stream(api) as stream:
        await stream.say(hello=HELLO)
        assert (await stream.problem()).metadata == {"field": "hello"}


async def test_the_server_introduces_itself(api: Api, server: Handle) -> None:
    async with Stream(api) as stream:
        assert stream.server is not None
        assert stream.server.server_run == server.engine.server_run
        assert stream.server.address == server.address
        assert stream.server.beat_interval.ToMilliseconds() == 2_000
        assert stream.server.max_frame_bytes == FRAME_BYTES
        assert stream.server.limits["steps_per_turn"] == 64
        assert await stream.done() == "OK"


@pytest.mark.spec("R-WORK-2")
async def test_turns_come_only_for_credits(api: Api) -> None:
    for number in range(6):
        await api.create(f"i{number}")
        await api.send(f"i{number}", "m1")
    async with Stream(api, credits=2) as stream:
        first = await stream.turns(2)
        await stream.command(first[0], finish())
        assert stream.waiting("turns") == 0
        await stream.credit(3)
        await stream.turns(3)
        await stream.command(first[1], finish())
        assert stream.waiting("turns") == 0
        assert sum(len(frame.turns) for frame in stream.frames) == 5


@pytest.mark.spec("R-WORK-2")
async def test_credits_that_fall_end_the_stream(api: Api) -> None:
    async with Stream(api, credits=5) as stream:
        await stream.say(credits_total=4)
        problem = await stream.problem()
        assert (problem.reason, problem.metadata) == ("INVALID_FIELD", {"field": "credits_total"})


@pytest.mark.spec("R-WORK-2")
async def test_credits_are_bounded(api: Api) -> None:
    await api.create("a")
    await api.send("a", "m1")
    async with Stream(api, credits=CREDITS, beats=False) as stream:
        await stream.turn()
        await stream.credit(1)  # one was used up
        await stream.beat_now()
        await stream.beat()
        await stream.credit(1)
        problem = await stream.problem()
        assert (problem.reason, problem.metadata) == ("INVALID_FIELD", {"field": "credits_total"})


@pytest.mark.parametrize("frame", [7, -1])
async def test_a_worker_cant_receive_what_was_not_sent(api: Api, frame: int) -> None:
    async with Stream(api) as stream:
        await stream.say(received_through=frame)
        assert (await stream.problem()).metadata == {"field": "received_through"}


async def test_a_frame_of_the_largest_size_is_taken_and_a_larger_one_refused(api: Api) -> None:
    await api.create("a")
    await api.send("a", "m1")
    async with Stream(api, credits=1) as stream:
        turn = await stream.turn()
        frame = pb.WorkRequest(received_through=stream.received, credits_total=1)
        frame.commands.append(stream.build(turn, checkpoint("large", b""), n=1))
        output = frame.commands[0].checkpoint.output
        output.data = b"x" * FRAME_BYTES
        output.data = output.data[: FRAME_BYTES - (frame.ByteSize() - FRAME_BYTES)]
        assert frame.ByteSize() == FRAME_BYTES
        async with stream._writing:
            await stream._call.write(frame)
        assert refusal(await stream.result())[0] == "LIMIT_EXCEEDED"  # of the step, not of the frame
        output.data += b"x"
        async with stream._writing:
            await stream._call.write(frame)
        problem = await stream.problem()
        assert (problem.reason, problem.metadata) == ("INVALID_FIELD", {"field": "frame"})


async def test_a_frame_has_at_most_256_commands(api: Api) -> None:
    await api.create("a")
    await api.send("a", "m1")
    async with Stream(api, credits=1) as stream:
        turn = await stream.turn()
        many = [stream.build(turn, checkpoint("same", b"x"), n=1) for _ in range(FRAME_ITEMS)]
        await stream.say(commands=many)
        for _ in many:
            assert refusal(await stream.result())[0] == ""  # the first, and 255 repeats
        await stream.say(commands=[*many, many[0]])
        assert (await stream.problem()).metadata == {"field": "commands"}


async def test_what_is_no_frame_is_refused(api: Api, server: Handle) -> None:
    call = api.channel.stream_stream("/pawl.v1.WorkerService/Work")()
    await call.write(b"\xff\xff\xff")
    assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.spec("R-WORK-3")
def test_frames_are_cut_at_256_items_and_numbered() -> None:
    outbox = Outbox()
    outbox.frame().beat.number = 1
    for n in range(600):
        outbox.result().n = n
    frames = []
    while (frame := outbox.take()) is not None:
        frames.append(frame)
    assert [frame.frame for frame in frames] == [1, 2, 3]
    assert [len(frame.results) for frame in frames] == [FRAME_ITEMS, FRAME_ITEMS, 88]
    assert (outbox.bytes, outbox.turns, outbox.empty) == (0, 0, True)


@pytest.mark.spec("R-WORK-3")
async def test_frames_are_cut_at_256_kib(api: Api) -> None:
    for number in range(12):
        await api.create(f"i{number}", state=Payload(data=b"s" * 60_000))
        await api.send(f"i{number}", "m1", b"m" * 30_000)
    async with Stream(api, credits=12) as stream:
        turns = await stream.turns(12)
        assert {turn.instance_id for turn in turns} == {f"i{number}" for number in range(12)}
    assert max(frame.ByteSize() for frame in stream.frames) <= 256 << 10
    assert any(len(frame.turns) > 1 for frame in stream.frames)


@pytest.mark.spec("R-WORK-6")
async def test_a_turn_above_the_workers_limit_fails_undeliverable(api: Api) -> None:
    await api.create("large", max_attempts=1, state=Payload(data=b"s" * 50_000))
    await api.create("small")
    async with Stream(api, credits=2, max_frame_bytes=65_536) as stream:
        await api.send("large", "m1", b"m" * 30_000)
        request = AwaitTurnRequest(instance_id="large", turn=1)
        ended = (await api.messages.AwaitTurn(request, timeout=CALL_S)).turn
        assert (ended.state, ended.last_failure.reason) == (TURN_STATE_FAILED, "UNDELIVERABLE")
        await api.send("small", "m1")
        assert (await stream.turn()).instance_id == "small"
        assert stream.waiting("turns") == 0


@pytest.mark.spec("R-WORK-6")
async def test_a_turn_just_below_the_workers_limit_is_sent(api: Api) -> None:
    await api.create("a", state=Payload(data=b"s" * 40_000))
    await api.send("a", "m1", b"m" * 25_000)
    async with Stream(api, credits=1, max_frame_bytes=65_536) as stream:
        turn = await stream.turn()
        assert len(turn.state.data) == 40_000
        assert max(frame.ByteSize() for frame in stream.frames) <= 65_536


@pytest.mark.spec("R-WORK-7")
async def test_both_sides_beat(quick_api: Api) -> None:
    async with Stream(quick_api) as stream:
        numbers = [(await stream.beat()).number for _ in range(4)]
        assert numbers == sorted(numbers)
        assert numbers[-1] > 0


@pytest.mark.spec("R-WORK-7")
async def test_a_stream_that_is_silent_for_three_beats_is_ended(quick_api: Api) -> None:
    async with Stream(quick_api, beats=False) as stream:
        assert await stream.code() == "DEADLINE_EXCEEDED"
        assert len(stream.frames) >= 3


async def test_end_lets_commands_finish(api: Api) -> None:
    await api.create("a")
    await api.send("a", "m1")
    await api.send("a", "m2")
    async with Stream(api, credits=5) as stream:
        turn = await stream.turn()
        await stream.say(commands=[stream.build(turn, finish())], end=True)
        assert await stream.code() == "OK"
        assert refusal(await stream.result())[0] == ""
        assert stream.waiting("turns") == 0


async def test_a_worker_that_only_stops_writing_gets_its_results(api: Api) -> None:
    await api.create("a")
    await api.send("a", "m1")
    async with Stream(api, credits=1) as stream:
        turn = await stream.turn()
        await stream.say(commands=[stream.build(turn, finish())])
        await stream._call.done_writing()
        assert await stream.code() == "OK"
        assert refusal(await stream.result())[0] == ""


@pytest.mark.spec("R-WORK-9")
async def test_a_server_that_stops_asks_to_move_and_takes_nothing_away(server: Handle, api: Api) -> None:
    await api.create("a")
    await api.create("b")
    await api.send("a", "m1")
    async with Stream(api, credits=5) as stream:
        turn = await stream.turn()
        stopping = asyncio.create_task(server.stop())
        assert (await stream.drained()).grace.ToMilliseconds() == 500
        assert refusal(await stream.command(turn, finish(again=b"more")))[0] == ""
        assert await stream.code() == "OK"
        assert stream.waiting("turns") == 0  # the continuation waits for another server
        await stopping


@pytest.mark.spec("R-WORK-9")
async def test_a_stream_opened_while_the_server_stops_is_sent_away(server: Handle, api: Api) -> None:
    async with Stream(api) as stream:
        stopping = asyncio.create_task(server.stop())
        await stream.drained()
        late = Stream(api, ordinal=2)
        with contextlib.suppress(grpc.aio.AioRpcError):  # there is nobody to connect to any more
            await late._call.write(pb.WorkRequest(hello=late.hello))
        assert (await late.code()) in ("UNAVAILABLE", "CANCELLED")
        await stopping


async def test_a_stream_whose_writes_block_gets_no_more_turns(server: Handle, api: Api) -> None:
    count, kept_free = 130, 40
    async with (
        FaultProxy(server.address) as proxy,
        Api(proxy.url) as held_up,
        Stream(held_up, credits=count, session="held-up") as blocked,
    ):
        proxy.down.hold()
        for number in range(count):
            await api.create(f"i{number}", state=Payload(data=b"s" * 60_000))
            await api.send(f"i{number}", "m1", b"m" * 30_000)
        async with Stream(api, credits=count, session="reads") as reads:
            taken = await reads.turns(kept_free)
            proxy.down.release()
            await blocked.turn()
            names = {turn.instance_id for turn in taken}
            assert len(names) == kept_free


async def test_streams_that_are_cut_leave_nothing_behind(
    server: Handle, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    def tasks() -> list[str]:
        names = [task.get_name() for task in asyncio.all_tasks()]
        return [name for name in names if name.startswith(("read ", "write "))]

    for _ in range(20):
        streams = [Stream(api, session=f"s{number}", credits=3) for number in range(10)]
        await asyncio.gather(*(stream.open() for stream in streams))
        for stream in streams:
            stream.cut()
    await wait_until(lambda: not tasks())
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
