# Generated from ../aio/admin.py by tools/gen.py; do not edit.
"""The server and the settings of workflow types."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from pawl._client.sync_connection import Connection, each
from pawl._convert import check_of, info_of, type_message, type_of, workload_of
from pawl._requests import type_name
from pawl.models import CheckPage, Finding, Page, ServerInfo, WorkflowType, Workload
from pawl.v1 import admin_service_pb2 as admin
from pawl.workflow import Workflow


class AdminCalls(Connection):
    """Calls of AdminService."""

    def info(self, *, timeout: float | None = None) -> ServerInfo:
        """Describes the server, its store and the limits in force."""
        return info_of(
            self._call(self._stubs.admin.GetServerInfo, admin.GetServerInfoRequest(), timeout)
        )

    def workload(self, workflow: Workflow | str = "", *, timeout: float | None = None) -> Workload:
        """Says what waits, by type and version, and what waits in vain; of one type, or of all."""
        request = admin.GetWorkloadRequest(workflow_type=type_name(workflow))
        return workload_of(self._call(self._stubs.admin.GetWorkload, request, timeout))

    def check_data_page(
        self,
        *,
        repair: bool = False,
        page_size: int = 0,
        page_token: str = "",
        timeout: float | None = None,
    ) -> CheckPage:
        """Checks a part of the stored data while everything goes on; with `repair`, mends what can be.

        `page_size` is 1 to 1,000 keys or entries, 0 means 200. Go on with `next_page_token` until that is
        empty, at any time, with any server.
        """
        request = admin.CheckDataRequest(repair=repair, page_size=page_size, cursor=page_token)
        return check_of(self._call(self._stubs.admin.CheckData, request, timeout))

    def check_data(self, *, repair: bool = False, page_size: int = 0) -> Iterator[Finding]:
        """Checks all stored data and iterates over what is wrong, or was before the repair."""
        return each(lambda token: self.check_data_page(repair=repair, page_size=page_size, page_token=token))

    def put_workflow_type(
        self,
        settings: WorkflowType,
        *,
        expected_revision: int | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> WorkflowType:
        """Stores the settings of a type; what is None goes back to its default.

        With `expected_revision` the change applies only to that revision, 0 meaning "must not exist"; raises
        RevisionConflict otherwise. Raises InvalidField for a setting out of range.
        """
        request = admin.PutWorkflowTypeRequest(
            workflow_type=type_message(settings),
            expected_revision=expected_revision,
            request_id=request_id or str(uuid.uuid4()),
        )
        return type_of((self._call(self._stubs.admin.PutWorkflowType, request, timeout)).workflow_type)

    def get_workflow_type(self, name: str, *, timeout: float | None = None) -> WorkflowType:
        """Reads the settings of a type, defaults filled in; revision 0 if it was never stored."""
        request = admin.GetWorkflowTypeRequest(name=name)
        return type_of((self._call(self._stubs.admin.GetWorkflowType, request, timeout)).workflow_type)

    def list_workflow_types_page(
        self, *, page_size: int = 0, page_token: str = "", timeout: float | None = None
    ) -> Page[WorkflowType]:
        """Reads one page of the types by name, defaults filled in; see `list_workflow_types`."""
        request = admin.ListWorkflowTypesRequest(page_size=page_size, page_token=page_token)
        answer = self._call(self._stubs.admin.ListWorkflowTypes, request, timeout)
        return Page([type_of(item) for item in answer.workflow_types], answer.next_page_token)

    def list_workflow_types(self, *, page_size: int = 0) -> Iterator[WorkflowType]:
        """Iterates by name over all types that have settings, or ever had instances or workers.

        Defaults are filled in; revision 0 says that nobody stored settings.
        """
        return each(lambda token: self.list_workflow_types_page(page_size=page_size, page_token=token))
