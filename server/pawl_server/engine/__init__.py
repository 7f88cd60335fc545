"""Policy around the transitions, one module per noun."""

from pawl_server.engine.core import Engine, new_server_run

__all__ = ["Engine", "new_server_run"]
