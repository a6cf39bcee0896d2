"""Divides an amount over grants: in spend order, each up to its room and its share cap (L4, L9).

Three callers use it: a new hold divides over the available credits, a charge over the open draws,
and a partial refund over the draws that stay. A refund returns credits in reverse spend order
because the division keeps the first ones.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from bursar.core.ids import GrantId
from bursar.core.ledger.values import Grant
from bursar.core.money import Micros, share_of

Parts: TypeAlias = dict[GrantId, Micros]


class Source(NamedTuple):
    """A grant that can pay: how much it has, and how much counts against its share cap."""

    grant: Grant
    room: Micros  # what can be had from it
    counted: Micros = 0  # what counts against its share cap already


def cap_left(source: Source, total: Micros) -> Micros:
    """How much more of `total` a source may pay under its share cap."""
    policy = source.grant.terms.policy
    if not policy.capped:
        return source.room
    return max(share_of(total, policy.max_share_ppm) - source.counted, 0)


def fill(sources: Iterable[Source], amount: Micros, total: Micros) -> tuple[Parts, Micros]:
    """Take `amount` from the sources in their order; return the parts and what is missing.

    Share caps are computed from `total`. Sources are read only until the amount is complete.
    """
    parts: Parts = {}
    missing = amount
    if missing == 0:
        return parts, 0
    for source in sources:
        take = min(missing, source.room, cap_left(source, total))
        if take > 0:
            parts[source.grant.terms.id] = take
            missing -= take
            if missing == 0:
                break
    return parts, missing


def take_first(parts: Parts, amount: Micros) -> Parts:
    """The first parts that add up to an amount."""
    taken: Parts = {}
    for grant, part in parts.items():
        take = min(part, amount)
        if take:
            taken[grant] = take
            amount -= take
    return taken


def fill_beyond_caps(sources: list[Source], amount: Micros, total: Micros) -> Parts:
    """Like `fill`, but a remainder that the share caps leave is taken regardless of them."""
    parts, missing = fill(sources, amount, total)
    for source in sources:
        grant = source.grant.terms.id
        more = min(missing, source.room - parts.get(grant, 0))
        if more > 0:
            parts[grant] = parts.get(grant, 0) + more
            missing -= more
    return parts
