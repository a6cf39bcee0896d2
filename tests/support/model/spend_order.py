"""Which grants a hold may spend, in which order (docs/ledger.md, §3), and what it returns (§6)."""

from collections.abc import Iterable, Sequence

from bursar.core.instant import Instant
from bursar.core.ledger.values import Context, GrantPolicy
from tests.support.model.state import ModelState
from tests.support.model.values import KINDS, MILLION, ModelGrant, ModelHold


class SpendOrderRules(ModelState):
    """Chooses grants."""

    def _restricted(self, policy: GrantPolicy) -> int:
        lists: Sequence[Iterable[str]] = (
            policy.gpu_types,
            policy.regions,
            policy.accounts,
            policy.job_kinds,
            policy.priority_classes,
        )
        return len([1 for allowed in lists if list(allowed)])

    def _admits(self, policy: GrantPolicy, context: Context, account: str) -> bool:
        if policy.gpu_types:
            if len(context.gpu_types) == 0:
                return False
            for gpu_type in context.gpu_types:
                if gpu_type not in policy.gpu_types:
                    return False
        if policy.regions and context.region not in policy.regions:
            return False
        if policy.job_kinds and context.job_kind not in policy.job_kinds:
            return False
        if policy.priority_classes and context.priority_class not in policy.priority_classes:
            return False
        return not policy.accounts or any(a in policy.accounts for a in self.path(account))

    def _in_spend_order(self, grants: Iterable[str], account: str) -> list[ModelGrant]:
        path = self.path(account)

        def key(grant: ModelGrant) -> tuple[int, int, int, int, int, int, str]:
            return (
                grant.priority,
                grant.expires_at,  # NEVER is later than any instant
                -self._restricted(grant.policy),
                KINDS.index(grant.kind),
                path.index(grant.account),
                grant.issued_at,
                grant.id,
            )

        return sorted((self.grants[id] for id in grants), key=key)

    def _eligible(self, account: str, context: Context, at: Instant) -> list[ModelGrant]:
        """Grants spendable at `at` by `account` for `context`, in spend order."""
        path = self.path(account)
        eligible = [
            grant.id
            for grant in self._grants()
            if grant.account in path
            and grant.spendable_at(at)
            and self._admits(grant.policy, context, account)
        ]
        return self._in_spend_order(eligible, account)

    def _cap(self, grant: ModelGrant, total: int) -> int:
        return grant.policy.max_share_ppm * total // MILLION

    def _plan(
        self,
        account: str,
        context: Context,
        amount: int,
        total: int,
        has: dict[str, int],
        now: Instant,
    ) -> dict[str, int] | None:
        """From which grants `amount` more can be held, given what each already pays; or None."""
        missing = amount
        plan = {}
        for grant in self._eligible(account, context, now):
            room = self._cap(grant, total) - has.get(grant.id, 0)
            take = min(missing, self._available(grant, now), room)
            if take > 0:
                plan[grant.id] = take
                missing -= take
        return plan if missing == 0 else None

    def _return(self, hold: ModelHold, parts: dict[str, int], at: Instant) -> None:
        """Give back parts of a hold that were never charged."""
        for id, amount in parts.items():
            if amount > 0:
                grant, draw = self.grants[id], hold.draws[id]
                self._post(grant, "held", "revoked" if grant.withdrawn else "free", amount, at)
                draw.open -= amount
                draw.returned += amount
                draw.returned_at = at

    def _spread(
        self, hold: ModelHold, most: dict[str, int], total: int, keep: int, has: dict[str, int]
    ) -> dict[str, int]:
        """How `keep` is spread over draws that have `most`: under caps first, then without them."""
        spread = dict.fromkeys(most, 0)
        missing = keep
        order = self._in_spend_order(most, hold.account)
        for grant in order:
            room = self._cap(grant, total) - has.get(grant.id, 0)
            take = max(0, min(missing, most[grant.id], room))
            spread[grant.id] += take
            missing -= take
        for grant in order:
            take = min(missing, most[grant.id] - spread[grant.id])
            spread[grant.id] += take
            missing -= take
        assert missing == 0
        return spread
