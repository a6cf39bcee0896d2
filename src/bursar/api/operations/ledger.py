"""Operations that are one command of the ledger, in single calls and in batches."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import TypeAdapter

from bursar.api.call import Call
from bursar.api.execute import CommandResult, execute
from bursar.api.operation import (
    ORG,
    PRICE_BOOK,
    CommandSpec,
    Operation,
    OperationTable,
    Parameter,
    ResponseType,
    describe_body,
)
from bursar.core.ids import BudgetId, GrantId, HoldId, RecurrenceId
from bursar.core.ledger import commands, events
from bursar.service.keys import DEPLOYMENT, Scope
from bursar.wire import requests, responses
from bursar.wire.fields import Id, WireModel
from bursar.wire.responses import Happened, find_event, require_event

operations = OperationTable("Ledger")
_ID: Final[TypeAdapter[str]] = TypeAdapter(Id)


def _add(
    *,
    name: str,
    path: str,
    scope: str,
    tag: str,
    body: Any,
    response: ResponseType,
    summary: str,
    description: str,
    spec: CommandSpec,
    method: str = "POST",
    status: int = 200,
    example: Any = None,
    problems: tuple[str, ...] = (),
) -> None:
    """Add an operation that is one command of the ledger."""

    async def handle(call: Call, id: Id = "", body: Any = None) -> CommandResult:
        key = call.idempotency_key()
        return await execute(call.service, call.caller, call.operation, id, body, key)

    parameter = Parameter("id", "id", "path", _ID, is_required=True)
    operations.add(
        Operation(
            name=name,
            method=method,
            path=path,
            tag=tag,
            summary=summary,
            description=description,
            handler=handle,
            scope=scope,
            response=response,
            status=status,
            takes_idempotency_key=True,
            path_parameters=(parameter,) if "{id}" in path else (),
            example=example,
            problems=problems,
            command=spec,
            **({} if body is None else describe_body(body)),
        )
    )


def _render_grant(org: str, command: Any, happened: Happened) -> WireModel:
    if isinstance(command, commands.StartRecurrence):
        started = require_event(events.RecurrenceStarted, happened)
        return responses.Recurrence.from_core(started.recurrence)
    return responses.Grant.from_core(require_event(events.GrantIssued, happened).terms)


def _render_charge(org: str, command: Any, happened: Happened) -> WireModel:
    booked = find_event(events.ChargeBooked, happened, charge=command.charge)
    return (
        responses.BookedCharge.zero(command)
        if booked is None
        else responses.BookedCharge.from_core(booked)
    )


def _render_hold(kind: type[events.HoldChanged]) -> Callable[[str, Any, Happened], WireModel]:
    return lambda org, command, happened: responses.HoldUpdate.from_core(
        require_event(kind, happened, hold=command.hold)
    )


def _render_revocation(org: str, command: Any, happened: Happened) -> WireModel:
    return responses.GrantRevocation.from_core(
        require_event(events.GrantRevoked, happened, grant=command.grant)
    )


def _render_price(org: str, command: Any, happened: Happened) -> WireModel:
    event = require_event(events.PriceSet, happened)
    owner = None if org == DEPLOYMENT else org
    return responses.PriceVersion.from_core(owner, event.in_full or event.version)


_add(
    name="holds.create",
    path="/v1/holds",
    scope=Scope.SPEND,
    tag="Holds",
    body=requests.HoldRequest,
    response=responses.Hold,
    summary="Open a hold",
    description="Reserve credits before work starts: an amount, or the cost of running GPUs for "
    "some time. The hold succeeds completely or not at all.",
    example={"account_id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d", "amount_micros": 75000000},
    problems=(
        "insufficient_credits",
        "budget_exceeded",
        "debt_outstanding",
        "account_unknown",
        "user_unknown",
        "price_unknown",
        "already_exists",
        "hold_too_long",
    ),
    status=201,
    spec=CommandSpec(
        subjects=(("accounts", "account_id"),),
        build=lambda it: it.body.to_command(it.ids, it.user, it.capped_key),
        render=lambda _, command, happened: responses.Hold.from_event(
            require_event(events.HoldOpened, happened, hold=command.hold)
        ),
    ),
)

_add(
    name="holds.charge",
    path="/v1/holds/{id}/charge",
    scope=Scope.SPEND,
    tag="Holds",
    body=requests.ChargeRequest,
    response=responses.BookedCharge,
    summary="Charge a hold",
    description="Charge usage to a hold: an amount, or the run time of an attempt so far. With "
    "`effective_at`, late usage is booked, even on a closed hold.",
    example={"amount_micros": 1000000},
    problems=(
        "hold_unknown",
        "hold_closed",
        "exceeds_hold_age",
        "not_metered",
        "attempt_settled",
        "exceeds_hold",
        "hold_of_a_job",
    ),
    status=200,
    spec=CommandSpec(
        subjects=(("holds", "id"),),
        build=lambda it: it.body.to_command(it.id, it.ids),
        render=_render_charge,
    ),
)

_add(
    name="holds.extend",
    path="/v1/holds/{id}/extend",
    scope=Scope.SPEND,
    tag="Holds",
    body=requests.HoldExtensionRequest,
    response=responses.HoldUpdate,
    summary="Extend a hold",
    description="Reserve more credits, make the hold last longer, or both.",
    example={"amount_micros": 5000000},
    problems=(
        "hold_unknown",
        "hold_closed",
        "insufficient_credits",
        "budget_exceeded",
        "hold_of_a_job",
    ),
    status=200,
    spec=CommandSpec(
        subjects=(("holds", "id"),),
        build=lambda it: it.body.to_command(it.id),
        render=_render_hold(events.HoldExtended),
    ),
)

_add(
    name="holds.settle",
    path="/v1/holds/{id}/settle",
    scope=Scope.SPEND,
    tag="Holds",
    body=requests.SettlementRequest,
    response=responses.Settlement,
    summary="Settle a hold",
    description="Charge the final usage, refund the rest and close the hold.",
    example={"total_micros": 5000000},
    problems=("hold_unknown", "hold_closed", "exceeds_hold_age", "not_metered", "hold_of_a_job"),
    status=200,
    spec=CommandSpec(
        subjects=(("holds", "id"),),
        build=lambda it: it.body.to_command(it.id, it.ids),
        render=lambda _, command, happened: responses.Settlement.from_events(
            happened, command.hold
        ),
    ),
)

_add(
    name="holds.release",
    path="/v1/holds/{id}/release",
    scope=Scope.SPEND,
    tag="Holds",
    body=requests.EmptyBody | None,
    response=responses.HoldUpdate,
    summary="Release a hold",
    description="Refund all open credits and close the hold.",
    example={},
    problems=("hold_unknown", "hold_closed", "hold_of_a_job"),
    status=200,
    spec=CommandSpec(
        subjects=(("holds", "id"),),
        build=lambda it: commands.Release(hold=HoldId(it.id)),
        render=_render_hold(events.HoldClosed),
    ),
)

_add(
    name="holds.refund",
    path="/v1/holds/{id}/refund",
    scope=Scope.SPEND,
    tag="Holds",
    body=requests.RefundRequest,
    response=responses.HoldUpdate,
    summary="Refund part of a hold",
    description="Return a part of the open credits to their grants. The hold stays open.",
    example={"amount_micros": 1000000},
    problems=("hold_unknown", "hold_closed", "exceeds_hold", "hold_of_a_job"),
    status=200,
    spec=CommandSpec(
        subjects=(("holds", "id"),),
        build=lambda it: it.body.to_command(it.id),
        render=_render_hold(events.HoldReduced),
    ),
)

_add(
    name="accounts.create",
    path="/v1/accounts",
    scope=Scope.MANAGE,
    tag="Accounts",
    body=requests.AccountRequest,
    response=responses.Account,
    summary="Create an account",
    description="Create an account below another account. It inherits the time zone unless you "
    "name one.",
    example={"parent_id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d", "name": "research"},
    problems=("account_unknown", "already_exists"),
    status=201,
    spec=CommandSpec(
        subjects=(("accounts", "parent_id"),),
        build=lambda it: it.body.to_command(it.ids),
        render=lambda org, _, happened: responses.Account.from_core(
            org, require_event(events.AccountAdded, happened).account
        ),
    ),
)

_add(
    name="users.create",
    path="/v1/users",
    scope=Scope.MANAGE,
    tag="Accounts",
    body=requests.UserRequest,
    response=responses.User,
    summary="Create a user",
    description="Create a user who can spend credits. Bursar stores nothing but the id.",
    example={"id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d"},
    problems=("org_unknown", "already_exists"),
    status=201,
    spec=CommandSpec(
        subjects=((ORG, "org_id"),),
        build=lambda it: it.body.to_command(it.ids),
        render=lambda org, _, happened: responses.User(
            id=require_event(events.UserAdded, happened).user, org_id=org
        ),
    ),
)

_add(
    name="tiers.set",
    path="/v1/tiers",
    scope=Scope.ISSUE,
    tag="Orgs",
    body=requests.TierRequest,
    response=responses.Tier,
    summary="Set the tier of an org",
    description="Give an org a tier, together with the default budgets of the tier.",
    example={"org_id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d", "tier": "paid"},
    status=200,
    spec=CommandSpec(
        check=lambda service, body: service.check_tier(body.tier),
        subjects=((ORG, "org_id"),),
        build=lambda it: it.body.to_command(it.ids),
        render=lambda org, command, _: responses.Tier(org_id=org, tier=command.tier),
    ),
)

_add(
    name="grants.create",
    path="/v1/grants",
    scope=Scope.ISSUE,
    tag="Grants",
    body=requests.GrantRequest,
    response=responses.Grant | responses.Recurrence,
    summary="Issue credits",
    description="Issue credits to an account, once or every period. Debts of the account are "
    "repaid first.",
    example={
        "account_id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d",
        "amount_micros": 500000000,
        "kind": "paid",
    },
    problems=(
        "account_unknown",
        "already_exists",
        "external_ref_exists",
        "time_invalid",
        "amount_too_large",
    ),
    status=201,
    spec=CommandSpec(
        subjects=(("accounts", "account_id"),),
        build=lambda it: it.body.to_command(it.ids),
        render=_render_grant,
    ),
)

_add(
    name="grants.revoke",
    path="/v1/grants/{id}/revoke",
    scope=Scope.ISSUE,
    tag="Grants",
    body=requests.EmptyBody | None,
    response=responses.GrantRevocation,
    summary="Revoke a grant",
    description="Take back the available credits of a grant. Held and spent credits stay.",
    example={},
    problems=("grant_unknown", "grant_revoked"),
    status=200,
    spec=CommandSpec(
        subjects=(("grants", "id"),),
        build=lambda it: commands.RevokeGrant(grant=GrantId(it.id)),
        render=_render_revocation,
    ),
)

_add(
    name="grants.void",
    path="/v1/grants/{id}/void",
    scope=Scope.ISSUE,
    tag="Grants",
    body=requests.EmptyBody | None,
    response=responses.GrantRevocation,
    summary="Void a grant",
    description="Undo a grant as if it was never issued. Fails if any of its credits are held, "
    "spent or moved.",
    example={},
    problems=("grant_unknown", "grant_in_use", "grant_revoked"),
    status=200,
    spec=CommandSpec(
        subjects=(("grants", "id"),),
        build=lambda it: commands.VoidGrant(grant=GrantId(it.id)),
        render=_render_revocation,
    ),
)

_add(
    name="grants.extend",
    path="/v1/grants/{id}/extend",
    scope=Scope.ISSUE,
    tag="Grants",
    body=requests.GrantExtensionRequest,
    response=responses.GrantExtension,
    summary="Extend a grant",
    description="Let a grant expire later, or never.",
    example={"expires_at": "2030-01-01T00:00:00Z"},
    problems=("grant_unknown", "grant_revoked", "grant_expired", "time_invalid"),
    status=200,
    spec=CommandSpec(
        subjects=(("grants", "id"),),
        build=lambda it: it.body.to_command(it.id),
        render=lambda _, command, __: responses.GrantExtension.model_construct(
            grant_id=command.grant, expires_at=command.expires_at
        ),
    ),
)

_add(
    name="recurrences.stop",
    path="/v1/recurrences/{id}/stop",
    scope=Scope.ISSUE,
    tag="Grants",
    body=requests.EmptyBody | None,
    response=responses.Deleted,
    summary="Stop a recurring grant",
    description="Stop issuing a recurring grant. Credits that were issued stay.",
    example={},
    problems=("recurrence_unknown",),
    status=200,
    spec=CommandSpec(
        subjects=(("recurrences", "id"),),
        build=lambda it: commands.StopRecurrence(recurrence=RecurrenceId(it.id)),
        render=lambda _, command, __: responses.Deleted(id=command.recurrence),
    ),
)

_add(
    name="transfers.create",
    path="/v1/transfers",
    scope=Scope.MANAGE,
    tag="Grants",
    body=requests.TransferRequest,
    response=responses.Grant,
    summary="Move credits",
    description="Move available credits of a grant to another account of the same org.",
    example={
        "grant_id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d",
        "account_id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d",
        "amount_micros": 1000000,
    },
    problems=(
        "grant_unknown",
        "account_unknown",
        "exceeds_grant",
        "grant_expired",
        "grant_revoked",
        "already_exists",
    ),
    status=201,
    spec=CommandSpec(
        subjects=(("grants", "grant_id"), ("accounts", "account_id")),
        build=lambda it: it.body.to_command(it.ids),
        render=lambda _, __, happened: responses.Grant.from_core(
            require_event(events.CreditsMoved, happened).terms
        ),
    ),
)

_add(
    name="charges.reverse",
    path="/v1/charges/{id}/reverse",
    scope=Scope.ISSUE,
    tag="Holds",
    body=requests.ReversalRequest,
    response=responses.Reversal,
    summary="Reverse a charge",
    description="Undo a charge or a part of it. The credits return to their grants.",
    example={"amount_micros": 1000000},
    problems=("charge_unknown", "exceeds_charge", "hold_of_a_job"),
    status=200,
    spec=CommandSpec(
        subjects=(("charges", "id"),),
        build=lambda it: it.body.to_command(it.id),
        render=lambda _, command, happened: responses.Reversal.from_core(
            require_event(events.ChargeReversed, happened, charge=command.charge)
        ),
    ),
)

_add(
    name="debts.create",
    path="/v1/debts",
    scope=Scope.ISSUE,
    tag="Debts",
    body=requests.DebtRequest,
    response=responses.Debt,
    summary="Book a debt",
    description="Book an amount that no hold covers, such as a payment that was charged back.",
    example={"account_id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d", "amount_micros": 1000000},
    problems=("account_unknown", "already_exists"),
    status=201,
    spec=CommandSpec(
        subjects=(("accounts", "account_id"),),
        build=lambda it: it.body.to_command(it.ids),
        render=lambda _, command, happened: responses.Debt.from_core(
            require_event(events.DebtBooked, happened).debt
        ),
    ),
)

_add(
    name="debts.absorb",
    path="/v1/debts/{id}/absorb",
    scope=Scope.ISSUE,
    tag="Debts",
    body=requests.AbsorptionRequest,
    response=responses.DebtAbsorption,
    summary="Absorb a debt",
    description="Write off a debt, or a part of it, at the operator's cost.",
    example={"amount_micros": 1000000},
    problems=("debt_unknown", "exceeds_debt"),
    status=200,
    spec=CommandSpec(
        subjects=(("debts", "id"),),
        build=lambda it: it.body.to_command(it.id),
        render=lambda _, command, happened: responses.DebtAbsorption(
            debt_id=command.debt,
            absorbed_micros=require_event(events.DebtAbsorbed, happened, debt=command.debt).amount,
        ),
    ),
)

_add(
    name="budgets.set",
    path="/v1/budgets",
    scope=Scope.MANAGE,
    tag="Budgets",
    body=requests.BudgetRequest,
    response=responses.Budget,
    summary="Set a budget",
    description="Create a budget, or change the limit, the hardness and the thresholds of an "
    "existing one.",
    example={
        "account_id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d",
        "every": "month",
        "limit_micros": 200000000,
    },
    problems=("account_unknown", "user_unknown", "budget_differs"),
    status=201,
    spec=CommandSpec(
        subjects=(("accounts", "account_id"), ("users", "user_id")),
        build=lambda it: it.body.to_command(it.ids),
        render=lambda _, command, happened: responses.Budget.from_core(
            require_event(events.BudgetSet, happened).budget
        ),
    ),
)

_add(
    name="budgets.update",
    path="/v1/budgets/{id}",
    scope=Scope.MANAGE,
    tag="Budgets",
    body=requests.BudgetChangeRequest,
    response=responses.Budget,
    summary="Change a budget",
    description="Change the limit, the hardness or the thresholds of a budget. What you leave out "
    "stays as it is, whatever other requests change at the same time.",
    example={"limit_micros": 300000000},
    problems=("budget_unknown",),
    method="PATCH",
    status=200,
    spec=CommandSpec(
        subjects=(("budgets", "id"),),
        build=lambda it: it.body.to_command(it.id),
        render=lambda _, command, happened: responses.Budget.from_core(
            require_event(events.BudgetSet, happened).budget
        ),
    ),
)

_add(
    name="budgets.delete",
    path="/v1/budgets/{id}",
    scope=Scope.MANAGE,
    tag="Budgets",
    body=None,
    response=responses.Deleted,
    summary="Delete a budget",
    description="Delete a budget. It limits nothing from now on.",
    problems=("budget_unknown",),
    method="DELETE",
    status=200,
    spec=CommandSpec(
        subjects=(("budgets", "id"),),
        build=lambda it: commands.DropBudget(budget=BudgetId(it.id)),
        render=lambda _, command, __: responses.Deleted(id=command.budget),
    ),
)

_add(
    name="prices.set",
    path="/v1/prices",
    scope=Scope.ISSUE,
    tag="Prices",
    body=requests.PriceRequest,
    response=responses.PriceVersion,
    summary="Add a price version",
    description="Add a version to the prices of an org. Operators who name no org set the prices "
    "of the deployment, which apply to all orgs.",
    example={"rates": [{"gpu_type": "H100", "micros_per_gpu_hour": 2500000}]},
    problems=("org_unknown", "already_exists", "time_invalid"),
    status=201,
    spec=CommandSpec(
        subjects=((PRICE_BOOK, "org_id"),),
        build=lambda it: it.body.to_command(it.ids),
        render=_render_price,
    ),
)

COMMANDS: Final[Mapping[str, Operation]] = {operation.name: operation for operation in operations}
