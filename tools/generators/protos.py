"""Python stubs of proto/, and docs/reference/api.md and errors.md from the comments. Needs the tool venv."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tools.generators.api_page import api_page, errors_page

STUBS = ("sdk/python/pawl/v1", "sdk/python/pawl/testing/v1")


def generate(root: Path) -> dict[str, str]:
    """Returns stubs and pages. Raises CalledProcessError if buf refuses the protos; its output says why."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder, "image.binpb")
        buf(root, "build", "-o", str(image))
        descriptors = FileDescriptorSet.FromString(image.read_bytes())
        buf(root, "generate", "-o", folder)
        files = {
            path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
            for stubs in STUBS
            for path in sorted(Path(folder, stubs).glob("*_pb2*"))
        }
    # mypy_grpc also writes empty stubs for files without a service.
    stubs = {
        path: text for path, text in files.items() if not path.endswith("_grpc.pyi") or path[:-1] in files
    }
    return {
        **stubs,
        "docs/reference/api.md": api_page(descriptors),
        "docs/reference/errors.md": errors_page(descriptors),
    }


def buf(root: Path, *arguments: str) -> None:
    """Runs the tool venv's buf with its `python3` and plugins first on PATH."""
    tools = Path(sys.executable).parent
    path = f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"
    subprocess.run([str(tools / "buf"), *arguments], cwd=root, env={**os.environ, "PATH": path}, check=True)
