"""Routes for quotas: how many things an account, a user or the pair may have at once (B4)."""

import json
from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator
from starlette.responses import Response

from bursar.api import settings
from bursar.api.call import Call
from bursar.api.errors import Refused
from bursar.api.operation import OperationTable
from bursar.api.pages import After, Limit, OrgId, Paginated
from bursar.service.keys import Scope
from bursar.service.queries.request_lookup import asker_of
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
    """Limit what an account with all below it, a user, or the pair may have at once."""

    account_id: Id | None = None
    user_id: Id | None = None
    gpus_max: Gpus | None = None
    gpus_max_by_type: Annotated[dict[Text, Gpus], Field(max_length=64)] | None = None
    jobs_running_max: Count | None = None
    jobs_queued_max: Count | None = None
    submissions_per_minute_max: Count | None = None

    @model_validator(mode="after")
    def _limits_somebody_in_something(self) -> Self:
        if self.account_id is None and self.user_id is None:
            raise ValueError("a quota needs a target: account_id, user_id, or both")
        if all(getattr(self, name) is None for name in LIMITS):
            raise ValueError(f"a quota limits something: one of {', '.join(LIMITS)}")
        return self


class QuotaRequest(QuotaTerms):
    """A quota that is to be set, under an id of one's own if one likes."""

    id: Id | None = None


class QuotaResponse(QuotaTerms):
    """A quota as it is kept; once dropped it limits nothing."""

    id: str
    org_id: str


def _told(org: str, id: str, body: dict[str, Any]) -> WireModel:
    return QuotaResponse.model_construct(
        **{**dict.fromkeys(QuotaTerms.model_fields), **body}, id=id, org_id=org
    )


async def _org(call: Call, body: QuotaTerms) -> str:
    """The org of a quota; what it limits must be there, and the caller's to limit."""
    service, caller = call.service, call.caller
    named = (("accounts", body.account_id), ("users", body.user_id))
    given = [(table, id) for table, id in named if id is not None]
    orgs = [await service.org_of(caller, table, id) for table, id in given]
    for table, id in given:
        await service.check_exists(orgs[0], table, id)
    return orgs[0]


async def _check_old(call: Call, org: str, id: str) -> None:
    """End the call unless what a quota limits so far is the caller's to limit, too.

    Under a key that was seen before nothing is changed any more: the ledger knows the answer.
    """
    service, caller = call.service, call.caller
    key = call.idempotency_key()
    if await service.read(lambda reader: asker_of(reader, org, key)) is not None:
        return
    kept = await service.read(lambda reader: setting(reader, org, KIND, id))
    old = json.loads(kept.body or "{}") if kept is not None else {}
    for table, name in (("accounts", "account_id"), ("users", "user_id")):
        if old.get(name) is not None:
            try:
                await service.org_of(caller, table, old[name])
            except Refused:
                raise settings.missing(KIND) from None


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
async def create(call: Call, body: QuotaRequest) -> Response:
    """Limit the GPUs or jobs that an account, a user or the pair may have at once."""
    org = await _org(call, body)
    kept = body.model_dump(exclude={"id"}, exclude_none=True)
    answer = await settings.create(call, org, KIND, body.id, kept, _told)
    return _let_know(call, org, answer)


def _let_know(call: Call, org: str, answer: Response) -> Response:
    """Let the pools know soon what they may have of an org's quotas."""
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
async def listed(
    call: Call, org_id: OrgId = None, after: After = "", limit: Limit = 100
) -> Response:
    """Return the quotas of an org, ordered by id."""
    service, caller = call.service, call.caller
    org = await service.whole_org(caller, org_id)
    return await settings.page(call, org, KIND, after, limit, _told)


@operations.get(
    "/v1/quotas/{id}",
    summary="Get a quota",
    name="quotas.get",
    response=QuotaResponse,
    scope=Scope.READ,
)
async def get(call: Call, id: Id, org_id: OrgId = None) -> Response:
    """Return a quota, with an ETag for a later change."""
    service, caller = call.service, call.caller
    org = await service.whole_org(caller, org_id)
    return await settings.look(call, org, KIND, id, _told)


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
async def change(call: Call, id: Id, body: QuotaTerms) -> Response:
    """Replace a quota. With If-Match, only if it has not changed since you read it."""
    org = await _org(call, body)
    await _check_old(call, org, id)
    kept = body.model_dump(exclude_none=True)
    return _let_know(call, org, await settings.change(call, org, KIND, id, kept, _told))


@operations.delete(
    "/v1/quotas/{id}",
    summary="Delete a quota",
    name="quotas.delete",
    response=Deleted,
    scope=Scope.MANAGE,
    takes_idempotency_key=True,
    takes_if_match=True,
)
async def drop(call: Call, id: Id, org_id: OrgId = None) -> Response:
    """Delete a quota. It limits nothing from now on."""
    service, caller = call.service, call.caller
    org = await service.whole_org(caller, org_id)
    return _let_know(call, org, await settings.drop(call, org, KIND, id))
