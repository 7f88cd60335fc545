"""A model and a delivery service to try the examples with: one HTTP server on this machine, in a thread.

It writes down what it is asked for in `asked`, and answers at once.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class StandIn:
    """Serves `POST /model`, which writes a sentence, and `POST /tool`, which delivers once per id."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.delivered: dict[str, dict[str, Any]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What it answers."""
        self.asked.append((path, body))
        if path == "/tool":
            self.delivered.setdefault(body["id"], body)
            return {"receipt": f"receipt-{body['id'][:8]}"}
        note = f" {body['note']}." if body.get("note") else ""
        return {"text": f"Part {body['part']} about {body['topic']}.{note}"}

    def close(self) -> None:
        """Stops it."""
        self._server.shutdown()
        self._server.server_close()


def _handler(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps(stand_in.answer(self.path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
            pass

    return Handler
