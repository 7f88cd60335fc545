"""A worker process of the demo; ends when its standard input closes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from pawl.cli.options import run
from pawl.client import Client
from pawl.demo.marks import MarkFile
from pawl.demo.workflows import collector, document_workflow
from pawl.worker import Worker


async def work(address: str, folder: Path, name: str, concurrency: int) -> None:
    """Runs the demo's workflows until standard input closes."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_input() -> None:
        if not os.read(sys.stdin.fileno(), 64):
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    loop.add_reader(sys.stdin.fileno(), on_input)
    marks = MarkFile(folder, name)
    async with Client(address) as client:
        document = document_workflow(client, marks, folder)
        # The collector has a worker of its own: documents that wait for room in its inbox must never take the
        # last place that it could run in.
        workers = [
            Worker(client, workflows=[document], concurrency=concurrency, labels={"demo": name}),
            Worker(client, workflows=[collector], concurrency=1, labels={"demo": name}),
        ]
        working = [asyncio.create_task(worker.run()) for worker in workers]
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({*working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(worker.stop(grace=1) for worker in workers))
        await asyncio.gather(*working)
    marks.close()


def main() -> None:
    """Reads the command line; the demo itself is the only caller."""
    parser = argparse.ArgumentParser(description="A worker process of `pawl demo`.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--concurrency", type=int, default=32)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    run(work(options.address, options.folder, options.name, options.concurrency))


if __name__ == "__main__":
    main()
