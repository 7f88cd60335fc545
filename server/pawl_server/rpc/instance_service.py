"""InstanceService."""

from __future__ import annotations

from pawl.v1 import instance_service_pb2 as pb
from pawl_server.domain.ids import check_optional_id, check_own_id, check_type
from pawl_server.engine import Engine
from pawl_server.engine.control import Target
from pawl_server.rpc import convert
from pawl_server.rpc.call import Context, Gate, unary


class InstanceService:
    """Creates, reads, controls and deletes instances."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self.gate = gate
        self._engine = engine

    @unary()
    async def CreateInstance(
        self, request: pb.CreateInstanceRequest, context: Context
    ) -> pb.CreateInstanceResponse:
        """Creates an instance, or repeats the first answer."""
        instance_id = check_own_id("instance_id", request.instance_id)
        check_optional_id("request_id", request.request_id)
        item = convert.create_item(
            "spec.", instance_id, request.spec, self._engine.limits, request.request_id
        )
        return pb.CreateInstanceResponse(instance=await self._engine.instances.create(item))

    @unary()
    async def GetInstance(self, request: pb.GetInstanceRequest, context: Context) -> pb.GetInstanceResponse:
        """Reads an instance with its state."""
        instance_id = check_own_id("instance_id", request.instance_id)
        return pb.GetInstanceResponse(instance=await self._engine.instances.get(instance_id))

    @unary()
    async def ListInstances(
        self, request: pb.ListInstancesRequest, context: Context
    ) -> pb.ListInstancesResponse:
        """Reads a page of the instances of a type."""
        workflow_type = check_type("workflow_type", request.workflow_type)
        size = convert.page_size(request.page_size)
        wanted = convert.wanted_instances(request)
        if request.status:
            found = self._engine.listing.by_status(workflow_type, request.status, size, request.page_token)
        else:
            found = self._engine.instances.list(workflow_type, size, request.page_token, wanted)
        instances, token = await found
        return pb.ListInstancesResponse(instances=instances, next_page_token=token)

    @unary(sheds=False)
    async def PauseInstance(
        self, request: pb.PauseInstanceRequest, context: Context
    ) -> pb.PauseInstanceResponse:
        """Stops dispatch of an instance."""
        paused = await self._engine.control.pause(convert.target(request, turn=False))
        return pb.PauseInstanceResponse(paused=paused)

    @unary(sheds=False)
    async def ResumeInstance(
        self, request: pb.ResumeInstanceRequest, context: Context
    ) -> pb.ResumeInstanceResponse:
        """Starts dispatch of an instance again."""
        resumed = await self._engine.control.resume(convert.target(request, turn=False))
        return pb.ResumeInstanceResponse(resumed=resumed)

    @unary(sheds=False)
    async def WakeInstance(
        self, request: pb.WakeInstanceRequest, context: Context
    ) -> pb.WakeInstanceResponse:
        """Ends the delay of a head that waits without running."""
        woken = await self._engine.control.wake(convert.target(request, turn=False))
        return pb.WakeInstanceResponse(woken=woken)

    @unary(sheds=False)
    async def DeleteInstance(
        self, request: pb.DeleteInstanceRequest, context: Context
    ) -> pb.DeleteInstanceResponse:
        """Deletes an instance with all that belongs to it."""
        target = Target(
            check_own_id("instance_id", request.instance_id),
            check_optional_id("request_id", request.request_id),
            incarnation=convert.incarnation(request.incarnation),
        )
        done = await self._engine.control.delete(target)
        return pb.DeleteInstanceResponse(deleted=done.deleted, in_background=done.background)
