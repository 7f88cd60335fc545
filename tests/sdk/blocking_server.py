"""A fake server that runs in threads, for workers that block their own event loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from pawl.v1 import worker_service_pb2 as work
from pawl.v1.worker_service_pb2_grpc import WorkerServiceServicer, add_WorkerServiceServicer_to_server
from tests.sdk.fake_server import ok


class BlockingServer(WorkerServiceServicer):
    """Leases one turn, acknowledges every command, records renewals.

    `early` is what steps say by unary calls.
    """

    def __init__(self, turn: work.LeasedTurn) -> None:
        self.address = ""
        self.commands: list[work.Command] = []
        self.renewals: list[work.RenewLeasesRequest] = []
        self.renewed: Callable[[bytes], work.RenewResult] = lambda lease: work.RenewResult(lease=lease)
        self.early: list[Any] = []
        self._turn = turn

    def Work(self, request_iterator: Any, context: Any) -> Iterator[work.WorkResponse]:
        answers: queue.Queue[work.WorkResponse | None] = queue.Queue()

        def read() -> None:
            try:
                for frame in request_iterator:
                    self.commands.extend(frame.commands)
                    if frame.commands:
                        answers.put(work.WorkResponse(results=[ok(command) for command in frame.commands]))
                    if frame.end:
                        break
            except grpc.RpcError:
                pass
            answers.put(None)

        threading.Thread(target=read, daemon=True).start()
        yield work.WorkResponse(frame=1, hello=work.ServerHello(server_run="blocking"))
        yield work.WorkResponse(frame=2, turns=[self._turn])
        frame = 2
        while (answer := answers.get()) is not None:
            frame += 1
            answer.frame = frame
            yield answer

    def RenewLeases(self, request: Any, context: Any) -> work.RenewLeasesResponse:
        self.renewals.append(request)
        return work.RenewLeasesResponse(results=[self.renewed(lease) for lease in request.leases])

    def StartOperation(self, request: Any, context: Any) -> work.StartOperationResponse:
        self.early.append(request)
        return work.StartOperationResponse()

    def ReportProgress(self, request: Any, context: Any) -> work.ReportProgressResponse:
        self.early.append(request)
        return work.ReportProgressResponse()

    def AdoptLeases(self, request: Any, context: Any) -> work.AdoptLeasesResponse:
        raise NotImplementedError


@contextmanager
def blocking_server(turn: work.LeasedTurn) -> Iterator[BlockingServer]:
    """Runs the server on a free port."""
    fake = BlockingServer(turn)  # pyright: ignore[reportAbstractUsage]
    server = grpc.server(ThreadPoolExecutor(8))
    add_WorkerServiceServicer_to_server(fake, server)
    fake.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield fake
    finally:
        server.stop(0).wait()
