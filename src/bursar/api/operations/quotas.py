"""Routes for quotas: GPUs and jobs that an account, a user or both may have at once (B4)."""

import json
from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator
from starlette.responses import Response

from bursar.api import settings
from bursar.api.call import Call
from bursar.api.errors import CallRefused
from bursar.api.operation import OperationTable
from bursar.api.pages import After, Limit, OrgId, Paginated
from bursar.service.keys import Scope
from bursar.service.queries.request_lookup import first_actor
from bursar.service.queries.settings import setting
from bursar.wire.fields import GPUS_MAX, Id, Text, WireModel
from bursar.wire.responses import Deleted

KIND: Final = "quota"
operations = OperationTable("Quotas")

Gpus = Annotated[int, Field(ge=0, le=GPUS_MAX)]
Count = Annotated[int, Field(ge=0, le=10**9)]
LIMITS: Final = (
    "gpus_max",
    "gpus_max_by_type",
    "jobs_running_max",
    "jobs_queued_max",
    "submissions_per_minute_max",
)


class QuotaTerms(WireModel):
    """Limits for an account and the accounts below it, for a user, or for the pair."""

    account_id: Id | None = None
    user_id: Id | None = None
    gpus_max: Gpus | None = None
    gpus_max_by_type: Annotated[dict[Text, Gpus], Field(max_length=64)] | None = None
    jobs_running_max: Count | None = None
    jobs_queued_max: Count | None = None
    submissions_per_minute_max: Count | None = None

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        if self.account_id is None and self.user_id is None:
            raise ValueError("a quota needs a target: account_id, user_id, or both")
        if all(getattr(self, name) is None for name in LIMITS):
            raise ValueError(f"a quota needs at least one limit: {', '.join(LIMITS)}")
        return self


class QuotaRequest(QuotaTerms):
    """Create a quota; the client may choose its id."""

    id: Id | None = None


class QuotaResponse(QuotaTerms):
    """A quota as it is stored."""

    id: str
    org_id: str


def _render(org: str, id: str, body: dict[str, Any]) -> WireModel:
    return QuotaResponse.model_construct(
        **{**dict.fromkeys(QuotaTerms.model_fields), **body}, id=id, org_id=org
    )


async def _org_of_targets(call: Call, body: QuotaTerms) -> str:
    """The org of a quota. Its account and user must exist, and the caller must reach them."""
    service, caller = call.service, call.caller
    fields = (("accounts", body.account_id), ("users", body.user_id))
    targets = [(table, id) for table, id in fields if id is not None]
    orgs = [await service.org_of(caller, table, id) for table, id in targets]
    for table, id in targets:
        await service.check_exists(orgs[0], table, id)
    return orgs[0]


async def _check_current_targets(call: Call, org: str, id: str) -> None:
    """End the call unless the caller reaches the account and user that a quota limits now.

    A retry changes nothing, so it is not checked: the ledger replays its response.
    """
    service, caller = call.service, call.caller
    key = call.idempotency_key()
    if await service.read(lambda reader: first_actor(reader, org, key)) is not None:
        return
    stored = await service.read(lambda reader: setting(reader, org, KIND, id))
    old = json.loads(stored.body or "{}") if stored is not None else {}
    for table, name in (("accounts", "account_id"), ("users", "user_id")):
        if old.get(name) is not None:
            try:
                await service.org_of(caller, table, old[name])
            except CallRefused:
                raise settings.not_found(KIND) from None


@operations.post(
    "/v1/quotas",
    status=201,
    summary="Create a quota",
    name="quotas.create",
    response=QuotaResponse,
    scope=Scope.MANAGE,
    takes_idempotency_key=True,
    example={"account_id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d", "gpus_max": 64},
)
async def create_quota(call: Call, body: QuotaRequest) -> Response:
    """Limit the GPUs or jobs that an account, a user or the pair may have at once."""
    org = await _org_of_targets(call, body)
    terms = body.model_dump(exclude={"id"}, exclude_none=True)
    answer = await settings.create_setting(call, org, KIND, body.id, terms, _render)
    return _notify_pools(call, org, answer)


def _notify_pools(call: Call, org: str, answer: Response) -> Response:
    """Have an org's quotas distributed to its pools soon."""
    service = call.service
    if service.pools is not None:
        service.pools.quotas.wake(org)
    return answer


@operations.get(
    "/v1/quotas",
    summary="List quotas",
    name="quotas.list",
    response=Paginated[QuotaResponse],
    scope=Scope.READ,
)
async def list_quotas(
    call: Call, org_id: OrgId = None, after: After = "", limit: Limit = 100
) -> Response:
    """Return the quotas of an org, ordered by id."""
    service, caller = call.service, call.caller
    org = await service.whole_org(caller, org_id)
    return await settings.list_settings(call, org, KIND, after, limit, _render)


@operations.get(
    "/v1/quotas/{id}",
    summary="Get a quota",
    name="quotas.get",
    response=QuotaResponse,
    scope=Scope.READ,
)
async def get_quota(call: Call, id: Id, org_id: OrgId = None) -> Response:
    """Return a quota, with an ETag for a later change."""
    service, caller = call.service, call.caller
    org = await service.whole_org(caller, org_id)
    return await settings.get_setting(call, org, KIND, id, _render)


@operations.put(
    "/v1/quotas/{id}",
    summary="Change a quota",
    name="quotas.update",
    response=QuotaResponse,
    scope=Scope.MANAGE,
    takes_idempotency_key=True,
    example={"account_id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d", "gpus_max": 128},
    takes_if_match=True,
)
async def update_quota(call: Call, id: Id, body: QuotaTerms) -> Response:
    """Replace a quota. With If-Match, only if it has not changed since you read it."""
    org = await _org_of_targets(call, body)
    await _check_current_targets(call, org, id)
    terms = body.model_dump(exclude_none=True)
    return _notify_pools(
        call, org, await settings.update_setting(call, org, KIND, id, terms, _render)
    )


@operations.delete(
    "/v1/quotas/{id}",
    summary="Delete a quota",
    name="quotas.delete",
    response=Deleted,
    scope=Scope.MANAGE,
    takes_idempotency_key=True,
    takes_if_match=True,
)
async def delete_quota(call: Call, id: Id, org_id: OrgId = None) -> Response:
    """Delete a quota. It limits nothing from now on."""
    service, caller = call.service, call.caller
    org = await service.whole_org(caller, org_id)
    return _notify_pools(call, org, await settings.delete_setting(call, org, KIND, id))
