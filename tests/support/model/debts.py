"""What an account owes, and how it is repaid (docs/ledger.md, §8)."""

from bursar.core.instant import Instant
from bursar.core.ledger.commands import AbsorbDebt, BookDebt, RepayDebt
from bursar.core.ledger.values import Context
from bursar.core.refusal import Code
from tests.support.model.spend_order import SpendOrderRules
from tests.support.model.values import ModelDebt, ModelHold


class DebtRules(SpendOrderRules):
    """Books and repays debts."""

    def owed_by(self, account: str) -> int:
        """What the account itself owes."""
        return sum(debt.owed for debt in self.debts.values() if debt.account == account)

    def _owes(self, account: str) -> bool:
        path = self.path(account)
        return any(debt.owed and debt.account in path for debt in self.debts.values())

    def _repay(self, at: Instant) -> None:
        owing = [debt for debt in self.debts.values() if debt.owed]
        for debt in sorted(owing, key=lambda debt: (debt.booked_at, debt.id)):
            hold = None if debt.hold is None else self.holds[debt.hold]
            context = Context() if hold is None else hold.context
            total = debt.total if hold is None else hold.used
            spent = {}
            for grant in self._eligible(debt.account, context, at):
                has = debt.draws.get(grant.id, 0) if hold is None else 0
                if hold is not None and grant.id in hold.draws:
                    has = hold.draws[grant.id].charged
                room = self._cap(grant, total) - has
                take = min(debt.owed, self._available(grant, at), room)
                if take > 0:
                    self._post(grant, "free", "spent", take, at)
                    debt.owed -= take
                    spent[grant.id] = take
                    if hold is None:
                        debt.draws[grant.id] = has + take
                    else:
                        hold.owed -= take
                        hold.draw(grant.id).charged += take
            if hold is not None:
                self._pay_charges(hold, spent)

    def _pay_charges(self, hold: ModelHold, spent: dict[str, int]) -> None:
        """What repaid a debt was spent on the charges that made it, the oldest first."""
        left = dict(spent)
        for charge in self.charges.values():
            if charge.hold == hold.id:
                for id in left:
                    take = min(left[id], charge.owed)
                    if take:
                        charge.owed -= take
                        charge.spent[id] = charge.spent.get(id, 0) + take
                        left[id] -= take

    def _on_BookDebt(self, ask: BookDebt) -> Code | None:
        if ask.account not in self.parents:
            return Code.ACCOUNT_UNKNOWN
        if ask.debt in self.debts or ask.debt in self.holds:
            return Code.ALREADY_EXISTS
        self.debts[ask.debt] = ModelDebt(
            ask.debt, ask.account, None, total=ask.amount, owed=ask.amount, booked_at=self.now
        )
        return None

    def _on_RepayDebt(self, ask: RepayDebt) -> Code | None:
        self._repay(self.now)
        return None

    def _on_AbsorbDebt(self, ask: AbsorbDebt) -> Code | None:
        if ask.debt not in self.debts:
            return Code.DEBT_UNKNOWN
        debt = self.debts[ask.debt]
        amount = debt.owed if ask.amount is None else ask.amount
        if amount > debt.owed or debt.owed == 0:
            return Code.EXCEEDS_DEBT
        debt.owed -= amount
        if debt.hold is not None:
            self.holds[debt.hold].owed -= amount
            self.holds[debt.hold].absorbed += amount
            for charge in self.charges.values():
                if charge.hold == debt.hold:
                    take = min(amount, charge.owed)
                    charge.owed -= take
                    amount -= take
        return None
