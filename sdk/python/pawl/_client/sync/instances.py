# Generated from ../aio/instances.py by tools/gen.py; do not edit.
"""Instances."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from pawl._client.sync_connection import Connection, each
from pawl._convert import instance_of
from pawl._requests import UNSET, NewInstance, spec_of
from pawl.models import Instance, Page
from pawl.v1 import instance_service_pb2 as instances
from pawl.workflow import Workflow


class InstanceCalls(Connection):
    """Calls of InstanceService."""

    def create(
        self,
        instance_id: str,
        workflow: Workflow | str,
        *,
        version: str | None = None,
        state: Any = UNSET,
        lease_timeout: float | timedelta | None = None,
        max_attempts: int | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Instance:
        """Creates an instance, or finds it as it was created. Parameters as in `NewInstance`.

        Raises BodyConflict if it exists with another type, version, state or settings.
        """
        new = NewInstance(workflow, version, state, lease_timeout, max_attempts)
        request = instances.CreateInstanceRequest(
            instance_id=instance_id, spec=spec_of(new), request_id=request_id or ""
        )
        return instance_of(
            (self._call(self._stubs.instances.CreateInstance, request, timeout)).instance
        )

    def get(self, instance_id: str, *, timeout: float | None = None) -> Instance:
        """Reads an instance with its state. Raises NotFound."""
        request = instances.GetInstanceRequest(instance_id=instance_id)
        return instance_of((self._call(self._stubs.instances.GetInstance, request, timeout)).instance)

    def list_page(
        self,
        workflow: Workflow | str,
        *,
        page_size: int = 0,
        page_token: str = "",
        timeout: float | None = None,
    ) -> Page[Instance]:
        """Reads one page of a type's instances in order of creation, without their state.

        `page_size` is 1 to 100, 0 means 50; a page may be shorter, and only an empty `next_page_token` ends
        the list.
        """
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        request = instances.ListInstancesRequest(
            workflow_type=name, page_size=page_size, page_token=page_token
        )
        answer = self._call(self._stubs.instances.ListInstances, request, timeout)
        return Page([instance_of(item) for item in answer.instances], answer.next_page_token)

    def list(self, workflow: Workflow | str, *, page_size: int = 0) -> Iterator[Instance]:
        """Iterates over all instances of a type in order of creation, without their state."""
        return each(lambda token: self.list_page(workflow, page_size=page_size, page_token=token))
