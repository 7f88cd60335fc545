"""Protoc plugin that writes `*_pb2_grpc.py`.

grpcio-tools holds the gRPC generator inside its own protoc, so buf can't call it as a plugin. This plugin
passes the request's descriptors to that protoc and returns the files it writes, for proto files that have a
service. Runs in the tool venv (tools/requirements-gen.txt).
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.compiler import plugin_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet


def generate(request: plugin_pb2.CodeGeneratorRequest) -> plugin_pb2.CodeGeneratorResponse:
    """Returns the gRPC modules of the requested files; protoc's error text becomes the response's error."""
    response = plugin_pb2.CodeGeneratorResponse(
        supported_features=plugin_pb2.CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL
    )
    with_service = {file.name for file in request.proto_file if file.service}
    wanted = [name for name in request.file_to_generate if name in with_service]
    if not wanted:
        return response
    with tempfile.TemporaryDirectory() as folder:
        descriptors = Path(folder, "descriptors.binpb")
        descriptors.write_bytes(FileDescriptorSet(file=request.proto_file).SerializeToString())
        out = Path(folder, "out")
        out.mkdir()
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--descriptor_set_in={descriptors}"]
        command += [f"--grpc_python_out={out}", *wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            response.error = done.stderr
            return response
        for path in sorted(out.rglob("*.py")):
            response.file.add(name=path.relative_to(out).as_posix(), content=path.read_text())
    return response


if __name__ == "__main__":
    wire = plugin_pb2.CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
    sys.stdout.buffer.write(generate(wire).SerializeToString())
