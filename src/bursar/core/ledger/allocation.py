"""Dividing an amount over grants: in spend order, each up to its room and its share cap (L4, L9).

The same division serves a new hold (over what is available), a charge (over what is open), and what
a hold keeps when a part goes back (over what it has): keeping the first in spend order is returning
in reverse.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from bursar.core.ids import GrantId
from bursar.core.ledger.values import Grant
from bursar.core.money import Micros, share_of

Parts: TypeAlias = dict[GrantId, Micros]


class Source(NamedTuple):
    """A grant as a plan sees it."""

    grant: Grant
    room: Micros  # what can be had from it
    counted: Micros = 0  # what counts against its share cap already


def cap_left(source: Source, total: Micros) -> Micros:
    """What a source may still carry of a running total."""
    policy = source.grant.terms.policy
    if not policy.capped:
        return source.room
    return max(share_of(total, policy.max_share_ppm) - source.counted, 0)


def fill(sources: Iterable[Source], amount: Micros, total: Micros) -> tuple[Parts, Micros]:
    """Take `amount` from the sources in their order, caps at `total`; also what is missing.

    Stops looking at sources when nothing is missing.
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
    """The first of the parts, as many as make up an amount."""
    taken: Parts = {}
    for grant, part in parts.items():
        take = min(part, amount)
        if take:
            taken[grant] = take
            amount -= take
    return taken


def fill_beyond_caps(sources: list[Source], amount: Micros, total: Micros) -> Parts:
    """Like `fill`, but never short: what the caps leave missing is filled without them."""
    parts, missing = fill(sources, amount, total)
    for source in sources:
        grant = source.grant.terms.id
        more = min(missing, source.room - parts.get(grant, 0))
        if more > 0:
            parts[grant] = parts.get(grant, 0) + more
            missing -= more
    return parts
