"""Routes for quotas: how many things an account, a user or the pair may have at once (B4)."""

import json
from typing import Annotated, Any, Final, Self

from fastapi import APIRouter, Request, Response
from pydantic import Field, model_validator

from bursar.api import settings
from bursar.api.errors import Refused
from bursar.api.execute import key_of
from bursar.api.request_body import StrictRoute
from bursar.api.routes.ledger_reads import READS, After, Limit, OrgId, Things
from bursar.api.routes.operations import IDEMPOTENCY_KEY, PROBLEM
from bursar.service.keys import Scope
from bursar.service.queries.request_lookup import asker_of
from bursar.service.queries.settings import setting
from bursar.wire.fields import GPUS_MAX, Id, Text, WireModel
from bursar.wire.responses import Deleted

KIND: Final = "quota"
router = APIRouter(prefix="/v1", route_class=StrictRoute, responses=PROBLEM)
MUTATION: Final[dict[str, Any]] = {"parameters": [IDEMPOTENCY_KEY], "x-scope": Scope.MANAGE}

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
            raise ValueError("a quota limits somebody: account_id, user_id, or both")
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


async def _org(request: Request, body: QuotaTerms) -> str:
    """The org of a quota; what it limits must be there, and the caller's to limit."""
    service, caller = settings.who(request)
    caller.needs(Scope.MANAGE)
    named = (("accounts", body.account_id), ("users", body.user_id))
    given = [(table, id) for table, id in named if id is not None]
    orgs = [await service.org_of(caller, table, id) for table, id in given]
    for table, id in given:
        await service.check_there(orgs[0], table, id)
    return orgs[0]


async def _check_old(request: Request, org: str, id: str) -> None:
    """End the call unless what a quota limits so far is the caller's to limit, too.

    Under a key that was seen before nothing is changed any more: the ledger knows the answer.
    """
    service, caller = settings.who(request)
    key = key_of(request)
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


@router.post(
    "/quotas",
    status_code=201,
    summary="Set a quota: GPUs or jobs at once",
    operation_id="quotas.create",
    response_model=QuotaResponse,
    openapi_extra=MUTATION,
)
async def create(request: Request, body: QuotaRequest) -> Response:
    """Set a quota."""
    org = await _org(request, body)
    kept = body.model_dump(exclude={"id"}, exclude_none=True)
    answer = await settings.create(request, org, KIND, body.id, kept, _told)
    return _let_know(request, org, answer)


def _let_know(request: Request, org: str, answer: Response) -> Response:
    """Let the pools know soon what they may have of an org's quotas."""
    service, _ = settings.who(request)
    if service.pools is not None:
        service.pools.quotas.wake(org)
    return answer


@router.get(
    "/quotas",
    summary="The quotas of an org",
    operation_id="quotas.list",
    response_model=Things[QuotaResponse],
    openapi_extra=READS,
)
async def listed(
    request: Request, org_id: OrgId = None, after: After = "", limit: Limit = 100
) -> Response:
    """The quotas of an org."""
    service, caller = settings.who(request)
    caller.needs(Scope.READ)
    org = await service.whole_org(caller, org_id)
    return await settings.page(request, org, KIND, after, limit, _told)


@router.get(
    "/quotas/{id}",
    summary="A quota",
    operation_id="quotas.get",
    response_model=QuotaResponse,
    openapi_extra=READS,
)
async def get(request: Request, id: Id, org_id: OrgId = None) -> Response:
    """A quota, with an ETag to change it by."""
    service, caller = settings.who(request)
    caller.needs(Scope.READ)
    org = await service.whole_org(caller, org_id)
    return await settings.look(request, org, KIND, id, _told)


@router.put(
    "/quotas/{id}",
    summary="Change a quota; with If-Match only if nobody else has",
    operation_id="quotas.change",
    response_model=QuotaResponse,
    openapi_extra=MUTATION,
)
async def change(request: Request, id: Id, body: QuotaTerms) -> Response:
    """Change a quota."""
    org = await _org(request, body)
    await _check_old(request, org, id)
    kept = body.model_dump(exclude_none=True)
    return _let_know(request, org, await settings.change(request, org, KIND, id, kept, _told))


@router.delete(
    "/quotas/{id}",
    summary="Limit no more",
    operation_id="quotas.drop",
    response_model=Deleted,
    openapi_extra=MUTATION,
)
async def drop(request: Request, id: Id, org_id: OrgId = None) -> Response:
    """Limit no more."""
    service, caller = settings.who(request)
    caller.needs(Scope.MANAGE)
    org = await service.whole_org(caller, org_id)
    return _let_know(request, org, await settings.drop(request, org, KIND, id))
