"""Issuing, extending, moving and withdrawing grants; recurring grants (docs/ledger.md, §9)."""

from bursar.core.instant import NEVER, Instant
from bursar.core.ledger.commands import (
    ExtendGrant,
    Issue,
    Lapse,
    RevokeGrant,
    StartRecurrence,
    StopRecurrence,
    Transfer,
    VoidGrant,
)
from bursar.core.refusal import Code
from tests.support.model.arithmetic import calendar_period
from tests.support.model.state import ModelState
from tests.support.model.values import ModelGrant, ModelRecurrence


class GrantRules(ModelState):
    """Issues and withdraws credits."""

    def _on_Issue(self, ask: Issue) -> Code | None:
        starts_at = self.now if ask.starts_at is None else ask.starts_at
        if any(account not in self.parents for account in (ask.account, *ask.policy.accounts)):
            return Code.ACCOUNT_UNKNOWN
        if ask.grant in self.grants:
            return Code.ALREADY_EXISTS
        if ask.external_ref is not None and any(
            grant.external_ref == ask.external_ref for grant in self._grants()
        ):
            return Code.EXTERNAL_REF_EXISTS
        if ask.expires_at <= max(starts_at, self.now):
            return Code.TIME_INVALID
        if ask.amount > self._room():
            return Code.AMOUNT_TOO_LARGE
        self.grants[ask.grant] = ModelGrant(
            id=ask.grant,
            account=ask.account,
            amount=ask.amount,
            kind=ask.kind,
            priority=ask.priority,
            policy=ask.policy,
            issued_at=self.now,
            starts_at=starts_at,
            expires_at=ask.expires_at,
            external_ref=ask.external_ref,
            begun=starts_at <= self.now,
        )
        return None

    def _on_ExtendGrant(self, ask: ExtendGrant) -> Code | None:
        if ask.grant not in self.grants:
            return Code.GRANT_UNKNOWN
        grant = self.grants[ask.grant]
        if ask.expires_at <= grant.expires_at:
            return Code.TIME_INVALID
        if grant.withdrawn:
            return Code.GRANT_REVOKED
        if grant.expires_at <= self.now:
            return Code.GRANT_EXPIRED
        grant.expiries.append((self.now, grant.expires_at))
        grant.expires_at = ask.expires_at
        return None

    def _on_RevokeGrant(self, ask: RevokeGrant) -> Code | None:
        if ask.grant not in self.grants:
            return Code.GRANT_UNKNOWN
        grant = self.grants[ask.grant]
        if grant.withdrawn:
            return Code.GRANT_REVOKED
        if self.now < grant.expires_at:
            self._post(grant, "free", "revoked", grant.inside("free"), self.now)
        grant.withdrawn = True
        return None

    def _on_VoidGrant(self, ask: VoidGrant) -> Code | None:
        if ask.grant not in self.grants:
            return Code.GRANT_UNKNOWN
        grant = self.grants[ask.grant]
        if grant.withdrawn:
            return Code.GRANT_REVOKED
        if any(grant.inside(place) for place in ("held", "spent", "moved")):
            return Code.GRANT_IN_USE
        self._post(grant, "free", "revoked", grant.inside("free"), self.now)
        grant.withdrawn = True
        return None

    def _on_Transfer(self, ask: Transfer) -> Code | None:
        if ask.account not in self.parents:
            return Code.ACCOUNT_UNKNOWN
        if ask.grant not in self.grants:
            return Code.GRANT_UNKNOWN
        if ask.to_grant in self.grants:
            return Code.ALREADY_EXISTS
        grant = self.grants[ask.grant]
        if grant.withdrawn:
            return Code.GRANT_REVOKED
        if grant.expires_at <= self.now:
            return Code.GRANT_EXPIRED
        if ask.amount > grant.inside("free"):
            return Code.EXCEEDS_GRANT
        self._post(grant, "free", "moved", ask.amount, self.now)
        self.grants[ask.to_grant] = ModelGrant(
            id=ask.to_grant,
            account=ask.account,
            amount=ask.amount,
            kind=grant.kind,
            priority=grant.priority,
            policy=grant.policy,
            issued_at=self.now,
            starts_at=grant.starts_at,
            expires_at=grant.expires_at,
            parent=grant.id,
            begun=grant.starts_at <= self.now,
        )
        return None

    def _on_Lapse(self, ask: Lapse) -> Code | None:
        return None  # what has expired is shown as lapsed, written or not

    def _on_StartRecurrence(self, ask: StartRecurrence) -> Code | None:
        starts_at = self.now if ask.starts_at is None else ask.starts_at
        if any(account not in self.parents for account in (ask.account, *ask.policy.accounts)):
            return Code.ACCOUNT_UNKNOWN
        if ask.recurrence in self.recurrences:
            return Code.ALREADY_EXISTS
        if starts_at < self.now:
            return Code.TIME_INVALID
        if ask.amount > self._room():
            return Code.AMOUNT_TOO_LARGE
        self.recurrences[ask.recurrence] = ModelRecurrence(ask, self.zones[ask.account], starts_at)
        if starts_at == self.now:
            self._turn(ask.recurrence, self.now)
        return None

    def _on_StopRecurrence(self, ask: StopRecurrence) -> Code | None:
        if ask.recurrence not in self.recurrences:
            return Code.RECURRENCE_UNKNOWN
        self.recurrences[ask.recurrence].next_at = NEVER
        return None

    def _turn(self, id: str, at: Instant) -> None:
        recurrence = self.recurrences[id]
        ask = recurrence.ask
        _, end = calendar_period(ask.every, recurrence.zone, at)
        left = 0
        for grant in (self.grants[name] for name in recurrence.present):
            if grant.expires_at <= at:  # it may have been extended
                left += grant.free_before(at)
        own = min(ask.amount, self._room())
        rolled = min(left, ask.roll_over_max, self._room() - own)
        again = rolled  # what is issued again is gone from where it was
        for grant in (self.grants[name] for name in recurrence.present):
            if grant.expires_at <= at:
                take = min(again, grant.free_before(at))
                if take:
                    self._post(grant, "free", "forfeited", take, at)
                    again -= take
        fresh = [
            (self.names.period_grant(id, at), own),
            (self.names.rolled_grant(id, at), rolled),
        ]
        fresh = [(name, amount) for name, amount in fresh if amount]
        for name, amount in fresh:
            self.grants[name] = ModelGrant(
                id=name,
                account=ask.account,
                amount=amount,
                kind=ask.kind,
                priority=ask.priority,
                policy=ask.policy,
                issued_at=at,
                starts_at=at,
                expires_at=end,
                recurrence=id,
                begun=True,
            )
        recurrence.present = [name for name, _ in fresh]
        recurrence.next_at = end
