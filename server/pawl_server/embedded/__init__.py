"""A private Valkey or Redis for one server: found, started, supervised, stopped."""

from pawl_server.embedded.errors import (
    EmbeddedError,
    FolderInUse,
    NoServerBinary,
    ServerDidNotStart,
    WrongTime,
)
from pawl_server.embedded.folder import Folder
from pawl_server.embedded.supervisor import Description, EmbeddedServer, EmbeddedSettings

__all__ = [
    "Description",
    "EmbeddedError",
    "EmbeddedServer",
    "EmbeddedSettings",
    "Folder",
    "FolderInUse",
    "NoServerBinary",
    "ServerDidNotStart",
    "WrongTime",
]
