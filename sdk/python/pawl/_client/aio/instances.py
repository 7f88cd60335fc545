"""Instances."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pawl._client.aio_connection import Connection, each
from pawl._convert import instance_of, status_value
from pawl._requests import UNSET, NewInstance, new_id, spec_of, type_name
from pawl.models import Instance, Page, RetryPolicy
from pawl.v1 import instance_service_pb2 as instances
from pawl.workflow import Workflow


class InstanceCalls(Connection):
    """Calls of InstanceService."""

    async def create(
        self,
        instance_id: str,
        workflow: Workflow | str,
        *,
        version: str | None = None,
        state: Any = UNSET,
        lease_timeout: float | timedelta | None = None,
        max_attempts: int | None = None,
        tags: Sequence[str] = (),
        correlation_key: str = "",
        retry: RetryPolicy | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Instance:
        """Creates an instance, or finds it as it was created. Parameters as in `NewInstance`.

        Raises BodyConflict if it exists with another type, version, state or settings, InstanceDeleted if
        `request_id` created a life of the id that was deleted within the last day.
        """
        new = NewInstance(workflow, version, state, lease_timeout, max_attempts, tags, correlation_key, retry)
        request = instances.CreateInstanceRequest(
            instance_id=instance_id, spec=spec_of(new), request_id=request_id or ""
        )
        return instance_of(
            (await self._call(self._stubs.instances.CreateInstance, request, timeout)).instance
        )

    async def get(self, instance_id: str, *, timeout: float | None = None) -> Instance:
        """Reads an instance with its state. Raises NotFound."""
        request = instances.GetInstanceRequest(instance_id=instance_id)
        return instance_of((await self._call(self._stubs.instances.GetInstance, request, timeout)).instance)

    async def list_page(
        self,
        workflow: Workflow | str,
        *,
        tag: str = "",
        correlation_key: str = "",
        status: str = "",
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        page_size: int = 0,
        page_token: str = "",
        timeout: float | None = None,
    ) -> Page[Instance]:
        """Reads one page of a type's instances in order of creation, without their state.

        Args:
            workflow: the type.
            tag, correlation_key: only instances created with this one; at most one of these and `status`.
            status: "BLOCKED" or "PAUSED": only instances that have it, in the order of version and id.
            created_from, created_before: bounds of the time of creation, the second one exclusive; naive
                times count as local ones.
            page_size: 1 to 100, 0 means 50; a page may be shorter, and only an empty `next_page_token` ends
                the list.
            page_token: `next_page_token` of the page before, with the same filters.
            timeout: seconds that the call may take.
        """
        request = instances.ListInstancesRequest(
            workflow_type=type_name(workflow),
            page_size=page_size,
            page_token=page_token,
            tag=tag,
            correlation_key=correlation_key,
            status=status_value(status),
        )
        if created_from is not None:
            request.created_from.FromDatetime(created_from.astimezone(UTC))
        if created_before is not None:
            request.created_before.FromDatetime(created_before.astimezone(UTC))
        answer = await self._call(self._stubs.instances.ListInstances, request, timeout)
        return Page([instance_of(item) for item in answer.instances], answer.next_page_token)

    def list(
        self,
        workflow: Workflow | str,
        *,
        tag: str = "",
        correlation_key: str = "",
        status: str = "",
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        page_size: int = 0,
    ) -> AsyncIterator[Instance]:
        """Iterates over the instances of a type, without their state; filters as in `list_page`."""
        return each(
            lambda token: self.list_page(
                workflow,
                tag=tag,
                correlation_key=correlation_key,
                status=status,
                created_from=created_from,
                created_before=created_before,
                page_size=page_size,
                page_token=token,
            )
        )

    async def pause(
        self,
        instance_id: str,
        *,
        incarnation: int = 0,
        comment: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Stops dispatch: messages are accepted and the turn that runs may end, but none starts.

        False if it was stopped already. `comment` goes into the ledger. Raises NotFound, with
        `incarnation` also if the id has another life.
        """
        request = instances.PauseInstanceRequest(
            instance_id=instance_id,
            incarnation=incarnation,
            comment=comment,
            request_id=request_id or new_id(),
        )
        return (await self._call(self._stubs.instances.PauseInstance, request, timeout)).paused

    async def resume(
        self,
        instance_id: str,
        *,
        incarnation: int = 0,
        comment: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Starts dispatch again. False if it was not stopped. `incarnation` and errors as in `pause`."""
        request = instances.ResumeInstanceRequest(
            instance_id=instance_id,
            incarnation=incarnation,
            comment=comment,
            request_id=request_id or new_id(),
        )
        return (await self._call(self._stubs.instances.ResumeInstance, request, timeout)).resumed

    async def wake(
        self,
        instance_id: str,
        *,
        incarnation: int = 0,
        comment: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Ends the delay of a turn in BACKOFF or DEFERRED; a sleep stays. False if there was none.

        `incarnation` and errors as in `pause`.
        """
        request = instances.WakeInstanceRequest(
            instance_id=instance_id,
            incarnation=incarnation,
            comment=comment,
            request_id=request_id or new_id(),
        )
        return (await self._call(self._stubs.instances.WakeInstance, request, timeout)).woken

    async def delete(
        self,
        instance_id: str,
        *,
        incarnation: int = 0,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Deletes an instance with all that belongs to it. False if there was none.

        A turn that runs loses its lease. With `incarnation`, raises NotFound unless the id has that life.
        """
        request = instances.DeleteInstanceRequest(
            instance_id=instance_id, incarnation=incarnation, request_id=request_id or new_id()
        )
        return (await self._call(self._stubs.instances.DeleteInstance, request, timeout)).deleted
