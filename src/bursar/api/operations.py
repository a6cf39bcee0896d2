"""Everything that changes something: one table from route to scope, body, command and answer.

A route and a line of a batch are the same operation. What an operation is about (`about`) says
where the call belongs: the first names the org, all of them must lie where the caller may work.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Final

from bursar.core.ledger import commands, events
from bursar.core.ledger.commands import Command
from bursar.service.keys import DEPLOYMENT, Scope
from bursar.wire import requests, responses
from bursar.wire.fields import IdFactory, WireModel
from bursar.wire.responses import Happened, first, only

ORG = "org"  # in `about`: the whole org that the body's org_id, or else the key, names
BOOK = "book"  # the same; for an operator who names none, the deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a call brings to an operation."""

    org: str
    id: str  # in the path; empty if there is none
    body: Any
    making: IdFactory
    user: str  # who spends, if the body does not say
    asked_by: str | None  # the key that asks, if it has a cap of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Something that can be asked for."""

    name: str
    path: str
    scope: str
    body: type[WireModel] | None
    about: tuple[tuple[str, str], ...]  # table, and the body's field; `id` in the path
    command: Callable[[Asked], Command]
    told: Callable[[str, Any, Happened], WireModel]  # org, command, what happened
    answer: type[WireModel] | UnionType
    summary: str
    method: str = "POST"
    status: int = 201


class Nothing(WireModel):
    """An empty body, which may be left out."""


def _created_grant(org: str, ask: Any, happened: Happened) -> WireModel:
    if isinstance(ask, commands.StartRecurrence):
        started = only(events.RecurrenceStarted, happened)
        return responses.Recurrence.from_core(started.recurrence)
    return responses.Grant.from_core(only(events.GrantIssued, happened).terms)


def _charged(org: str, ask: Any, happened: Happened) -> WireModel:
    booked = first(events.ChargeBooked, happened, charge=ask.charge)
    return responses.Charge.nothing(ask) if booked is None else responses.Charge.from_core(booked)


def _changed(kind: type[events.HoldChanged]) -> Callable[[str, Any, Happened], WireModel]:
    return lambda org, ask, happened: responses.HoldUpdate.from_core(
        only(kind, happened, hold=ask.hold)
    )


def _revoked(org: str, ask: Any, happened: Happened) -> WireModel:
    return responses.GrantRevocation.from_core(only(events.GrantRevoked, happened, grant=ask.grant))


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="holds.create",
        path="/holds",
        scope=Scope.SPEND,
        body=requests.HoldRequest,
        about=(("accounts", "account_id"),),
        command=lambda asked: asked.body.to_command(asked.making, asked.user, asked.asked_by),
        told=lambda _, ask, happened: responses.Hold.opened(
            only(events.HoldOpened, happened, hold=ask.hold)
        ),
        answer=responses.Hold,
        summary="Reserve credits before the work starts",
    ),
    Operation(
        name="holds.charge",
        path="/holds/{id}/charge",
        scope=Scope.SPEND,
        body=requests.ChargeRequest,
        about=(("holds", "id"),),
        command=lambda asked: asked.body.to_command(asked.id, asked.making),
        told=_charged,
        answer=responses.Charge,
        summary="Charge usage: an amount, or the run time so far",
        status=200,
    ),
    Operation(
        name="holds.extend",
        path="/holds/{id}/extend",
        scope=Scope.SPEND,
        body=requests.HoldExtensionRequest,
        about=(("holds", "id"),),
        command=lambda asked: asked.body.to_command(asked.id),
        told=_changed(events.HoldExtended),
        answer=responses.HoldUpdate,
        summary="Hold more, last longer, or both",
        status=200,
    ),
    Operation(
        name="holds.settle",
        path="/holds/{id}/settle",
        scope=Scope.SPEND,
        body=requests.SettlementRequest,
        about=(("holds", "id"),),
        command=lambda asked: asked.body.to_command(asked.id, asked.making),
        told=lambda _, ask, happened: responses.Settlement.settled(happened, ask.hold),
        answer=responses.Settlement,
        summary="Charge the last of it, refund the rest, close",
        status=200,
    ),
    Operation(
        name="holds.release",
        path="/holds/{id}/release",
        scope=Scope.SPEND,
        body=Nothing,
        about=(("holds", "id"),),
        command=lambda asked: commands.Release(hold=asked.id),  # type: ignore[arg-type]
        told=_changed(events.HoldClosed),
        answer=responses.HoldUpdate,
        summary="Refund all that is open and close",
        status=200,
    ),
    Operation(
        name="holds.refund",
        path="/holds/{id}/refund",
        scope=Scope.SPEND,
        body=requests.RefundRequest,
        about=(("holds", "id"),),
        command=lambda asked: asked.body.to_command(asked.id),
        told=_changed(events.HoldReduced),
        answer=responses.HoldUpdate,
        summary="Return a part of what is open",
        status=200,
    ),
    Operation(
        name="accounts.create",
        path="/accounts",
        scope=Scope.MANAGE,
        body=requests.AccountRequest,
        about=(("accounts", "parent_id"),),
        command=lambda asked: asked.body.to_command(asked.making),
        told=lambda org, _, happened: responses.Account.from_core(
            org, only(events.AccountAdded, happened).account
        ),
        answer=responses.Account,
        summary="Put an account into the tree",
    ),
    Operation(
        name="users.create",
        path="/users",
        scope=Scope.MANAGE,
        body=requests.UserRequest,
        about=((ORG, "org_id"),),
        command=lambda asked: asked.body.to_command(asked.making),
        told=lambda org, _, happened: responses.User(
            id=only(events.UserAdded, happened).user, org_id=org
        ),
        answer=responses.User,
        summary="Let a principal of the org spend credits",
    ),
    Operation(
        name="tiers.set",
        path="/tiers",
        scope=Scope.ISSUE,
        body=requests.TierRequest,
        about=((ORG, "org_id"),),
        command=lambda asked: asked.body.to_command(asked.making),
        told=lambda org, ask, _: responses.Tier(org_id=org, tier=ask.tier),
        answer=responses.Tier,
        summary="Give an org a tier, with its default budgets",
        status=200,
    ),
    Operation(
        name="grants.create",
        path="/grants",
        scope=Scope.ISSUE,
        body=requests.GrantRequest,
        about=(("accounts", "account_id"),),
        command=lambda asked: asked.body.to_command(asked.making),
        told=_created_grant,
        answer=responses.Grant | responses.Recurrence,
        summary="Issue credits, once or again and again",
    ),
    Operation(
        name="grants.revoke",
        path="/grants/{id}/revoke",
        scope=Scope.ISSUE,
        body=Nothing,
        about=(("grants", "id"),),
        command=lambda asked: commands.RevokeGrant(grant=asked.id),  # type: ignore[arg-type]
        told=_revoked,
        answer=responses.GrantRevocation,
        summary="Take back what is available of a grant",
        status=200,
    ),
    Operation(
        name="grants.void",
        path="/grants/{id}/void",
        scope=Scope.ISSUE,
        body=Nothing,
        about=(("grants", "id"),),
        command=lambda asked: commands.VoidGrant(grant=asked.id),  # type: ignore[arg-type]
        told=_revoked,
        answer=responses.GrantRevocation,
        summary="Undo a grant as never issued",
        status=200,
    ),
    Operation(
        name="grants.extend",
        path="/grants/{id}/extend",
        scope=Scope.ISSUE,
        body=requests.GrantExtensionRequest,
        about=(("grants", "id"),),
        command=lambda asked: asked.body.to_command(asked.id),
        told=lambda _, ask, __: responses.GrantExtension.model_construct(
            grant_id=ask.grant, expires_at=ask.expires_at
        ),
        answer=responses.GrantExtension,
        summary="Let a grant expire later",
        status=200,
    ),
    Operation(
        name="recurrences.stop",
        path="/recurrences/{id}/stop",
        scope=Scope.ISSUE,
        body=Nothing,
        about=(("recurrences", "id"),),
        command=lambda asked: commands.StopRecurrence(recurrence=asked.id),  # type: ignore[arg-type]
        told=lambda _, ask, __: responses.Deleted(id=ask.recurrence),
        answer=responses.Deleted,
        summary="Issue a recurring grant no more",
        status=200,
    ),
    Operation(
        name="transfers.create",
        path="/transfers",
        scope=Scope.MANAGE,
        body=requests.TransferRequest,
        about=(("grants", "grant_id"), ("accounts", "account_id")),
        command=lambda asked: asked.body.to_command(asked.making),
        told=lambda _, __, happened: responses.Grant.from_core(
            only(events.CreditsMoved, happened).terms
        ),
        answer=responses.Grant,
        summary="Move credits to another account of the org",
    ),
    Operation(
        name="charges.reverse",
        path="/charges/{id}/reverse",
        scope=Scope.ISSUE,
        body=requests.ReversalRequest,
        about=(("charges", "id"),),
        command=lambda asked: asked.body.to_command(asked.id),
        told=lambda _, ask, happened: responses.Reversal.from_core(
            only(events.ChargeReversed, happened, charge=ask.charge)
        ),
        answer=responses.Reversal,
        summary="Undo a charge, or a part of it",
        status=200,
    ),
    Operation(
        name="debts.create",
        path="/debts",
        scope=Scope.ISSUE,
        body=requests.DebtRequest,
        about=(("accounts", "account_id"),),
        command=lambda asked: asked.body.to_command(asked.making),
        told=lambda _, ask, happened: responses.Debt.from_core(
            only(events.DebtBooked, happened).debt
        ),
        answer=responses.Debt,
        summary="Owe an amount that no hold covers",
    ),
    Operation(
        name="debts.absorb",
        path="/debts/{id}/absorb",
        scope=Scope.ISSUE,
        body=requests.AbsorptionRequest,
        about=(("debts", "id"),),
        command=lambda asked: asked.body.to_command(asked.id),
        told=lambda _, ask, happened: responses.DebtAbsorption(
            debt_id=ask.debt,
            absorbed_micros=only(events.DebtAbsorbed, happened, debt=ask.debt).amount,
        ),
        answer=responses.DebtAbsorption,
        summary="Write a debt off at the operator's cost",
        status=200,
    ),
    Operation(
        name="budgets.set",
        path="/budgets",
        scope=Scope.MANAGE,
        body=requests.BudgetRequest,
        about=(("accounts", "account_id"), ("users", "user_id")),
        command=lambda asked: asked.body.to_command(asked.making),
        told=lambda _, ask, happened: responses.Budget.from_core(
            only(events.BudgetSet, happened).budget
        ),
        answer=responses.Budget,
        summary="Set a budget, or change limit, hardness and thresholds of one",
    ),
    Operation(
        name="budgets.drop",
        path="/budgets/{id}",
        method="DELETE",
        scope=Scope.MANAGE,
        body=None,
        about=(("budgets", "id"),),
        command=lambda asked: commands.DropBudget(budget=asked.id),  # type: ignore[arg-type]
        told=lambda _, ask, __: responses.Deleted(id=ask.budget),
        answer=responses.Deleted,
        summary="Let a budget limit no more",
        status=200,
    ),
    Operation(
        name="prices.set",
        path="/prices",
        scope=Scope.ISSUE,
        body=requests.PriceRequest,
        about=((BOOK, "org_id"),),
        command=lambda asked: asked.body.to_command(asked.making),
        told=lambda org, _, happened: responses.PriceVersion.from_core(
            None if org == DEPLOYMENT else org, only(events.PriceSet, happened).version
        ),
        answer=responses.PriceVersion,
        summary="Add a version to an org's prices; an operator who names none: to those of all",
    ),
)

BY_NAME: Final[Mapping[str, Operation]] = {one.name: one for one in OPERATIONS}
