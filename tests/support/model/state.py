"""What the model stores of one org, and the questions that every rule asks."""

from bursar.core.instant import Instant
from bursar.core.ledger.values import OrgPolicy
from bursar.core.pricing import PriceBook, PriceVersion
from tests.support.model.values import (
    LARGEST,
    ModelBudget,
    ModelCharge,
    ModelDebt,
    ModelGrant,
    ModelHold,
    ModelRecurrence,
    ModelSetting,
    Names,
    Posting,
)


class ModelState:
    """The stored history of one org."""

    def __init__(self, prices: PriceBook, names: Names | None = None) -> None:
        self.names = names or Names()
        self.deployment: list[PriceVersion] = list(prices.versions)
        self.overrides: list[PriceVersion] = []
        self.parents: dict[str, str | None] = {}
        self.zones: dict[str, str] = {}
        self.users: list[str] = []
        self.settings: dict[tuple[str, str], ModelSetting] = {}
        self.policy = OrgPolicy()
        self.tier: str | None = None
        self.tier_budgets = 0  # how many there have ever been
        self.grants: dict[str, ModelGrant] = {}
        self.holds: dict[str, ModelHold] = {}
        self.charges: dict[str, ModelCharge] = {}
        self.debts: dict[str, ModelDebt] = {}
        self.recurrences: dict[str, ModelRecurrence] = {}
        self.budgets: dict[str, ModelBudget] = {}
        self.dropped: list[str] = []
        self.now: Instant = 0

    def path(self, account: str) -> list[str]:
        """The account and all above it."""
        path = [account]
        while (parent := self.parents[path[-1]]) is not None:
            path.append(parent)
        return path

    def below(self, account: str) -> list[str]:
        """The account and all below it."""
        return [other for other in self.parents if account in self.path(other)]

    def _root(self) -> str:
        return next(account for account, parent in self.parents.items() if parent is None)

    def _grants(self) -> list[ModelGrant]:
        return list(self.grants.values())

    def _available(self, grant: ModelGrant, at: Instant) -> int:
        return grant.inside("free") if grant.spendable_at(at) else 0

    def _in_available(self, at: Instant) -> dict[str, int]:
        return {grant.id: grant.inside("free") for grant in self._grants() if at < grant.expires_at}

    def _grew(self, before: dict[str, int], at: Instant) -> bool:
        """Whether some credits have become available: of a grant that starts later, too."""
        after = self._in_available(at)
        return any(after[id] > before.get(id, 0) for id in after)

    def _post(
        self, grant: ModelGrant, source: str, target: str, amount: int, effective: Instant
    ) -> None:
        assert amount >= 0
        if amount:
            grant.postings.append(Posting(effective, source, target, amount))

    def _write(self, now: Instant) -> None:
        for hold in self.holds.values():
            hold.end_unwritten = False
        for grant in self._grants():
            if grant.recorded is None:
                grant.recorded = now
            for posting in grant.postings:
                if posting.recorded is None:
                    posting.recorded = now

    def _room(self) -> int:
        """How much more can be issued before the org has had the largest amount in all."""
        return LARGEST - sum(grant.amount - grant.inside("moved") for grant in self._grants())
