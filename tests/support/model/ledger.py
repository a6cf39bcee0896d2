"""A second, naive ledger, written from `docs/ledger.md`; it shares no rule with the core.

The core keeps indexes and counters so that it is fast. This model keeps the whole history
in lists and works everything out again, by folding and sorting, for each question. From the
core it takes only the vocabulary: commands, plain values and the codes of refusals. A test
applies the same commands to both and compares them; where they differ, the document decides.

    A micro-credit of a grant is in one of six places: free, held, spent, forfeited, revoked, moved.
    Free credits are shown as available until the grant expires and as lapsed from then on, so that
    an expiry needs no posting. Forfeited credits are shown as lapsed too, and are never free again.
"""

from collections.abc import Callable

from bursar.core.instant import Instant
from bursar.core.ledger.commands import Command, Reserve
from bursar.core.ledger.values import Context
from bursar.core.refusal import Code
from tests.support.model.arithmetic import largest_carried, price
from tests.support.model.corrections import CorrectionRules
from tests.support.model.grants import GrantRules
from tests.support.model.settings import SettingRules
from tests.support.model.values import LARGEST, PLACES, ModelGrant, Posting, Shown, Snapshot


class Model(CorrectionRules, GrantRules, SettingRules):
    """The books of one org, kept by brute force."""

    def answer(self, command: Command, now: Instant) -> Code | None:
        """The code with which `command` is refused at `now`; None if it is accepted."""
        assert now >= self.now, "time went back"
        self._catch_up(now)
        self.now = now
        before = self._in_available(now)
        code = self._dispatch(command)
        if code is None:
            if self._grew(before, now):
                self._repay(now)
            self._write(now)
        return code

    def _dispatch(self, command: Command) -> Code | None:
        code: Code | None = getattr(self, f"_on_{type(command).__name__}")(command)
        return code

    def _catch_up(self, now: Instant) -> None:
        while True:
            due: list[tuple[Instant, int, str]] = []
            for hold in self.holds.values():
                if hold.closed_at is None and hold.limit <= now:
                    due.append((hold.limit, 1, hold.id))
            for id, recurrence in self.recurrences.items():
                if recurrence.next_at <= now:
                    due.append((recurrence.next_at, 0, id))
            for grant in self._grants():
                if not grant.begun and grant.starts_at <= now:
                    due.append((grant.starts_at, 2, grant.id))
            if not due:
                return
            at, what, id = min(due)
            before = self._in_available(at)
            if what == 1:
                hold = self.holds[id]
                self._return(hold, {g: draw.open for g, draw in hold.draws.items()}, at)
                hold.closed_at = at
                hold.end_unwritten = True
                if self._grew(before, at):
                    self._repay(at)
            elif what == 0:
                self._turn(id, at)
                if self._grew(before, at):
                    self._repay(at)
            else:
                grant = self.grants[id]
                grant.begun = True
                if self._available(grant, at) > 0:
                    self._repay(at)

    def view(self, at: Instant, known_at: Instant) -> dict[str, Shown]:
        """The compartments of each grant as of `at`, as known at `known_at`."""
        seen = {}
        for grant in self.grants.values():
            if grant.recorded is None or grant.recorded > known_at or grant.issued_at > at:
                continue
            expires_at = grant.expires_at
            for recorded, until_then in reversed(grant.expiries):
                if recorded > known_at:
                    expires_at = until_then

            def known(posting: Posting) -> bool:
                recorded = posting.recorded
                return recorded is not None and recorded <= known_at and posting.effective <= at

            seen[grant.id] = self._shown(grant, at >= expires_at, known)
        return seen

    def shown(self, now: Instant) -> dict[str, Shown]:
        """The compartments of each grant at `now`."""
        return {grant.id: self._shown(grant, now >= grant.expires_at) for grant in self._grants()}

    def _shown(
        self, grant: ModelGrant, expired: bool, seen: Callable[[Posting], bool] | None = None
    ) -> Shown:
        inside = {place: grant.inside(place, seen) for place in PLACES}
        return {
            "available": 0 if expired else inside["free"],
            "held": inside["held"],
            "spent": inside["spent"],
            "lapsed": inside["forfeited"] + (inside["free"] if expired else 0),
            "revoked": inside["revoked"],
            "moved": inside["moved"],
        }

    def spendable(
        self, account: str, now: Instant, context: Context | None = None, user: str | None = None
    ) -> int:
        """The most that one hold could take at `now`: credits, and what hard budgets leave.

        A user who is not named is one who has used nothing.
        """
        self._catch_up(now)
        if self._owes(account):
            return 0
        grants = self._eligible(account, context or Context(), now)
        credits = largest_carried(
            [(grant.inside("free"), grant.policy.max_share_ppm) for grant in grants]
        )
        room = self._headroom(account, user or "", now)
        return credits if room is None else min(credits, room)

    def forbidding(self, ask: Reserve, now: Instant) -> list[Code]:
        """Everything that stands against a hold at `now`; of several types, against the cheapest.

        Another type may be had all the same: then nothing forbids the hold.
        """
        self._catch_up(now)
        self.now = now
        if ask.account not in self.parents:
            return [Code.ACCOUNT_UNKNOWN]
        codes = self._faults(ask)
        known = self._known_rates(ask.context)
        if ask.run_ms is None:
            hold = self._opened(ask, ask.context.gpu_types, known, ask.amount or 0)
        elif not known:
            return [*codes, Code.PRICE_UNKNOWN]
        else:
            cheapest = self._cheapest(known)
            cost = price(known[cheapest], ask.context.milli_gpus, ask.run_ms) * (
                ask.element_count or 1
            )
            hold = self._opened(ask, (cheapest,), {cheapest: known[cheapest]}, cost)
        hold.id = ""  # a new hold, even if a hold of that id exists
        if hold.open > LARGEST:
            codes.append(Code.AMOUNT_TOO_LARGE)
        if self._owes(ask.account):
            codes.append(Code.DEBT_OUTSTANDING)
        codes += [Code.BUDGET_EXCEEDED] * self._budgets_over(hold, now)
        if self._planned(hold) is None:
            codes.append(Code.INSUFFICIENT_CREDITS)
        return codes

    def snapshot(self, now: Instant) -> Snapshot:
        """Everything that can be compared, as plain values, with what has fallen due by `now`."""
        self._catch_up(now)
        return {
            "grants": {
                grant.id: self._shown(grant, now >= grant.expires_at)
                | {
                    "withdrawn": grant.withdrawn,
                    "account": grant.account,
                    "kind": grant.kind,
                    "amount": grant.amount,
                    "priority": grant.priority,
                    "issued_at": grant.issued_at,
                    "starts_at": grant.starts_at,
                    "expires_at": grant.expires_at,
                    "recurrence": grant.recurrence,
                }
                for grant in self._grants()
            },
            "holds": {
                hold.id: {
                    "open": hold.open,
                    "used": hold.used,
                    "owed": hold.owed,
                    "absorbed": hold.absorbed,
                    "closed": hold.closed_at is not None,
                    "limit": hold.limit,
                    "rate": hold.rate,
                    "lots": (hold.lots, hold.at_once, hold.lot, hold.taken, hold.lot_of),
                    "draws": {
                        grant: (draw.open, draw.charged, draw.reversed)
                        for grant, draw in hold.draws.items()
                        if draw.open or draw.charged or draw.reversed
                    },
                    "meters": {
                        attempt: (meter.started_at, meter.rate, meter.run_ms)
                        for attempt, meter in hold.meters.items()
                        if meter.run_ms
                    },
                }
                for hold in self.holds.values()
            },
            "debts": {debt.id: debt.owed for debt in self.debts.values() if debt.owed},
            "accounts": {
                account: {"used": self.used_by(account), "owed": self.owed_by(account)}
                for account in self.parents
            },
            "budgets": {
                id: {
                    place: charged
                    for place, charged in budget.charged.items()
                    if charged and not self._gone(budget, place[1], now)
                }
                for id, budget in self.budgets.items()
            },
            "counts": {
                id: {user: self.counted(budget, user, now) for user in self.counting(budget)}
                for id, budget in self.budgets.items()
            },
            "crossed": {
                id: {user: self.thresholds(budget, user, now) for user in self.counting(budget)}
                for id, budget in self.budgets.items()
            },
            "recurrences": {id: recurrence.next_at for id, recurrence in self.recurrences.items()},
            "settings": {key: setting.body for key, setting in self.settings.items()},
        }

    def used_by(self, account: str) -> int:
        """What the usage of a subtree has spent, whoever owned the credits."""
        inside = self.below(account)
        held = sum(
            draw.charged - draw.reversed
            for hold in self.holds.values()
            if hold.account in inside
            for draw in hold.draws.values()
        )
        charged_back = sum(
            sum(debt.draws.values()) for debt in self.debts.values() if debt.account in inside
        )
        return held + charged_back
