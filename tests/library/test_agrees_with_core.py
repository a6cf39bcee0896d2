"""The library and the service's core are one ledger but for the boundary rule (IL26)."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar import CreditLedger, InsufficientCredits
from bursar.core.ids import AccountId, ChargeId, GrantId, HoldId, UserId
from bursar.core.instant import DAY, Instant
from bursar.core.ledger.balance import balance
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    Charge,
    Issue,
    Refund,
    Reserve,
    Settle,
)
from bursar.core.ledger.journal import Journal
from bursar.core.ledger.values import CreditKind
from bursar.core.refusal import Code, Refusal

pytestmark = pytest.mark.property

ACCOUNT, USER = AccountId("org"), UserId("u")


@dataclass(frozen=True)
class Step:
    """Something asked of both, some time after the step before."""

    what: str
    wait: int
    amount: int
    life: int  # of added credits; also which reservation is meant


steps = st.builds(
    Step,
    what=st.sampled_from(["add", "add", "consume", "reserve", "commit", "refund"]),
    wait=st.sampled_from([0, 0, 1, 2, 5]),
    amount=st.integers(1, 12),
    life=st.integers(0, 9),
)


class Both:
    """A library ledger and a core journal that are told the same."""

    def __init__(self) -> None:
        self.library = CreditLedger()
        self.core = Journal()
        self.now: Instant = 0
        self.count = 0
        self.reserved: list[tuple[int, HoldId]] = []
        self.core.do(AddAccount(account=ACCOUNT, parent=None, name="org"), 0)
        self.core.do(AddUser(user=USER), 0)

    def take(self, step: Step) -> None:
        """Let time pass, ask both, and compare what they say and what is left."""
        self.now += step.wait
        self.count += 1
        getattr(self, step.what)(step)
        told = self.library.get_balance(self.now)

        assert told == balance(self.core.books, ACCOUNT, self.now).spendable

    def add(self, step: Step) -> None:
        """Credits that end `life` from now: included in the library, excluded in the core."""
        expiry = self.now + step.life
        self.library.add_credits(step.amount, expiry_time=expiry)
        self.core.do(
            Issue(
                grant=GrantId(f"g{self.count:03}"),
                account=ACCOUNT,
                amount=step.amount,
                kind=CreditKind.PAID,
                expires_at=expiry + 1,
            ),
            self.now,
        )

    def consume(self, step: Step) -> None:
        """Spend at once: a hold and its settlement in the core."""
        opened = self._hold(HoldId(f"x{self.count}"), step.amount)
        if isinstance(opened, Refusal):
            assert Code.INSUFFICIENT_CREDITS == opened.code
            with pytest.raises(InsufficientCredits) as short:
                self.library.consume_credits(step.amount, current_time=self.now)
            assert short.value.available == opened.figures["spendable"]
            return
        assert step.amount == self.library.consume_credits(step.amount, current_time=self.now)
        settle = Settle(
            charge=ChargeId(f"c{self.count}"), hold=HoldId(f"x{self.count}"), total=step.amount
        )
        self.core.do(settle, self.now)

    def reserve(self, step: Step) -> None:
        """Set aside; both find the credits in the same packs."""
        hold = HoldId(f"h{self.count}")
        opened = self._hold(hold, step.amount)
        found = self.library.try_reserve(
            "default", step.amount, self.now, request_id=f"r{self.count}"
        )
        assert (found is None) == isinstance(opened, Refusal)
        if found is not None:
            self.reserved.append((found.id, hold))
            assert dict(found.draws) == self._drawn(hold)

    def commit(self, step: Step) -> None:
        """Spend a part of what is set aside, expired or not."""
        for reservation, hold in self._meant(step):
            amount = min(step.amount, self.library.remaining(reservation))
            if amount:
                self.library.commit(reservation, amount, request_id=f"r{self.count}")
                charge = Charge(charge=ChargeId(f"c{self.count}"), hold=hold, amount=amount)
                assert not isinstance(self.core.do(charge, self.now), Refusal)

    def refund(self, step: Step) -> None:
        """Give a part back; what has expired by now is gone in both."""
        for reservation, hold in self._meant(step):
            amount = min(step.amount, self.library.remaining(reservation))
            if amount:
                self.library.get_balance(self.now)  # the library learns the time from its callers
                self.library.refund(reservation, amount, request_id=f"r{self.count}")
                assert not isinstance(
                    self.core.do(Refund(hold=hold, amount=amount), self.now), Refusal
                )

    def _meant(self, step: Step) -> list[tuple[int, HoldId]]:
        return self.reserved[step.life : step.life + 1]

    def _hold(self, hold: HoldId, amount: int) -> object:
        ask = Reserve(
            hold=hold, account=ACCOUNT, user=USER, amount=amount, expires_at=self.now + DAY
        )
        return self.core.do(ask, self.now)

    def _drawn(self, hold: HoldId) -> dict[int, int]:
        """What a hold drew, by the library's expiry."""
        found = self.core.books.holds.get(hold)
        assert found is not None
        drawn: dict[int, int] = {}
        for draw in found.draws:
            grant = self.core.books.grants.get(draw.grant)
            assert grant is not None
            expiry = grant.terms.expires_at - 1
            drawn[expiry] = drawn.get(expiry, 0) + draw.drawn
        return drawn


@given(st.lists(steps, max_size=40))
def test_library_and_core_are_one_ledger(asked: list[Step]) -> None:
    """Told the same, they spend the same packs and have the same left, step by step (L17, IL26).

    The one difference is the boundary: an expiry e of the library is e + 1 in the core.
    """
    both = Both()
    for step in asked:
        both.take(step)
