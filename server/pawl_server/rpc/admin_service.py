"""AdminService."""

from __future__ import annotations

from pawl.v1 import admin_service_pb2 as pb
from pawl_server.domain import limits as bounds
from pawl_server.domain.errors import InvalidField
from pawl_server.domain.ids import check_optional_id, check_type
from pawl_server.engine import Engine
from pawl_server.engine.types import ANY_REVISION
from pawl_server.rpc import convert
from pawl_server.rpc.call import Context, Gate, time_left, unary

CLOCK_S = 0.5
"""Longest time to ask Redis for its clock; GetServerInfo is answered without it, too."""


class AdminService:
    """Describes the server and manages workflow types."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self.gate = gate
        self._engine = engine

    @unary(sheds=False, while_draining=True)
    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        """Describes the server, also while it stops or its store is away."""
        left = time_left(context)
        return await self._engine.info.get(CLOCK_S if left is None else min(CLOCK_S, left / 2))

    @unary()
    async def PutWorkflowType(
        self, request: pb.PutWorkflowTypeRequest, context: Context
    ) -> pb.PutWorkflowTypeResponse:
        """Stores the settings of a type, with compare-and-set if a revision is expected."""
        name = check_type("workflow_type.name", request.workflow_type.name)
        check_optional_id("request_id", request.request_id)
        settings = convert.type_settings("workflow_type.", request.workflow_type)
        expected = ANY_REVISION
        if request.HasField("expected_revision"):
            expected = request.expected_revision
            if expected < 0:
                raise InvalidField("expected_revision", f"is {expected}, below 0")
        stored = await self._engine.types.put(
            name, settings, expected=expected, request_id=request.request_id
        )
        return pb.PutWorkflowTypeResponse(workflow_type=stored)

    @unary()
    async def GetWorkflowType(
        self, request: pb.GetWorkflowTypeRequest, context: Context
    ) -> pb.GetWorkflowTypeResponse:
        """Reads a type, defaults filled in."""
        name = check_type("name", request.name)
        return pb.GetWorkflowTypeResponse(workflow_type=await self._engine.types.get(name))

    @unary()
    async def ListWorkflowTypes(
        self, request: pb.ListWorkflowTypesRequest, context: Context
    ) -> pb.ListWorkflowTypesResponse:
        """Reads a page of the stored types."""
        types, token = await self._engine.types.list(convert.page_size(request.page_size), request.page_token)
        return pb.ListWorkflowTypesResponse(workflow_types=types, next_page_token=token)

    @unary()
    async def GetWorkload(self, request: pb.GetWorkloadRequest, context: Context) -> pb.GetWorkloadResponse:
        """Says what waits, and what waits in vain."""
        workflow_type = check_type("workflow_type", request.workflow_type) if request.workflow_type else ""
        return await self._engine.listing.workload(workflow_type)

    @unary()
    async def CheckData(self, request: pb.CheckDataRequest, context: Context) -> pb.CheckDataResponse:
        """Checks a part of what is stored, and mends it if asked to."""
        size = request.page_size
        if not 0 <= size <= bounds.CHECK_PAGE:
            raise InvalidField("page_size", f"is {size}, not within 0 to {bounds.CHECK_PAGE}")
        return await self._engine.fsck.check(
            request.cursor, size or bounds.CHECK_PAGE_DEFAULT, repair=request.repair
        )
