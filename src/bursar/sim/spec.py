"""Parses a scenario: a mapping of plain values, as read from YAML or JSON.

Spans are written `30s`, `10m`, `2h`, `1d` or as seconds; credits as numbers or text with up to six
decimals. An unknown key is refused with its location.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Final, TypeVar

from bursar.core.instant import DAY
from bursar.core.money import AMOUNT_MAX, CREDIT, PPM, Micros
from bursar.core.scheduling.model.jobs import Path
from bursar.core.scheduling.model.policy import PoolPolicy, Share
from bursar.core.scheduling.model.policy_file import PolicyFileError as SpecWrong
from bursar.core.scheduling.model.policy_file import build, parse_policy, parse_span
from bursar.core.scheduling.model.policy_file import parse_texts as _texts
from bursar.core.scheduling.model.policy_file import reject_unknown_keys as _only
from bursar.core.scheduling.model.policy_file import require_list as _list
from bursar.core.scheduling.model.policy_file import require_mapping as _mapping
from bursar.core.scheduling.model.policy_file import with_location as _checked
from bursar.core.value import replace, value
from bursar.sim.admission import Admission
from bursar.sim.fleets import Fleet, Group
from bursar.sim.loads import ArrivalPattern, SimulatedTenant, works
from bursar.sim.provisioning import Offer, Provision
from bursar.sim.rng import Chance
from bursar.sim.work import Size, Work, size_of
from bursar.sim.world import ClockDrift, Outage, SimulatedWorld

__all__ = ["SimulationSpec", "SpecWrong", "micros_of", "parse_span", "spec_of"]

T = TypeVar("T")
WORDS: Final = {
    "fleet", "tenants", "days", "policy", "tiers", "shares", "credits", "restart_cost", "drain",
    "speed", "readings", "clocks", "admission", "provision", "outages",
}  # fmt: skip


@value
class SimulationSpec:
    """A scenario whose jobs have not been drawn yet."""

    fleet: Fleet
    tenants: tuple[SimulatedTenant, ...] = ()
    span: int = DAY  # how long jobs arrive
    policy: PoolPolicy = PoolPolicy()
    credits: tuple[tuple[str, Micros], ...] = ()
    restart_cost: int = 0
    drain: int = 30 * DAY
    speeds: tuple[tuple[str, int], ...] = ()
    readings: int = 0
    clocks: ClockDrift = ClockDrift()
    admission: Admission | None = None
    provision: Provision | None = None
    outages: tuple[Outage, ...] = ()

    def world(self, chance: Chance, jobs: tuple[Work, ...] | None = None) -> SimulatedWorld:
        """The world with its jobs, drawn or recorded."""
        if jobs is None:
            types, size = self.fleet.types, self.fleet.node_gpus
            jobs = works(self.tenants, self.span, types, size, chance.stream("load"))
        if not jobs:
            raise SpecWrong("no job is submitted in that time")
        self._known(jobs)
        self._types()
        return SimulatedWorld(
            fleet=self.fleet, works=jobs, policy=self.policy, credits=self.credits,
            restart_cost=self.restart_cost, drain=self.drain, speeds=self.speeds,
            readings=self.readings, clocks=self.clocks, admission=self.admission,
            provision=self.provision, outages=self.outages,
        )  # fmt: skip

    def with_gpus(self, gpu_type: str, gpus: int) -> "SimulationSpec":
        """The scenario with this many GPUs of a type more or fewer."""
        fleet = _checked(f"{gpu_type}={gpus}", lambda: self.fleet.with_gpus(gpu_type, gpus))
        return replace(self, fleet=fleet)

    def with_weight(self, path: Path, weight: int) -> "SimulationSpec":
        """The scenario with another weight of a group in the share tree."""
        if len(path) == 1 and path[0] not in {tier.name for tier in self.policy.tiers}:
            raise SpecWrong(f"there is no tier {path[0]}")
        weighed = partial(_weighed, self.policy, path, weight)
        return replace(self, policy=_checked(f"{'/'.join(path)}={weight}", weighed))

    def _known(self, works: tuple[Work, ...]) -> None:
        """Refuse names of groups that no tenant or tier has: they would have no effect."""
        tiers = {tier.name for tier in self.policy.tiers}
        for tenant in self.tenants:
            if tenant.tier not in tiers:
                names = ", ".join(sorted(tiers))
                raise SpecWrong(f"{tenant.org}: there is no tier {tenant.tier}; there are {names}")
        paths = {work.path[:size] for work in works for size in range(2, len(work.path) + 1)}
        paths |= {(tenant.tier, tenant.org) for tenant in self.tenants}
        for path, _ in self.policy.shares:
            if path not in paths:
                raise SpecWrong(f"shares: there is no {'/'.join(path)}")
        orgs = {path[1] for path in paths}
        for org, _ in self.credits:
            if org not in orgs:
                raise SpecWrong(f"credits: there is no org {org}")

    def _types(self) -> None:
        """Refuse GPU types that no node has."""
        types = set(self.fleet.types)
        types |= {offer.gpu_type for offer in self.provision.offers} if self.provision else set()
        for gpu_type, _ in self.speeds:
            if gpu_type not in types:
                raise SpecWrong(f"speed: no node has GPUs of type {gpu_type}")
        for outage in self.outages:
            if outage.gpu_type not in self.fleet.types:
                raise SpecWrong(f"outages: the fleet has no GPUs of type {outage.gpu_type}")


def _weighed(policy: PoolPolicy, path: Path, weight: int) -> PoolPolicy:
    """The policy with another weight of a tier, or of a group below it."""
    if len(path) == 1:
        tiers = (
            replace(tier, weight=weight) if tier.name == path[0] else tier for tier in policy.tiers
        )
        return replace(policy, tiers=tuple(tiers))
    shares = dict(policy.shares)
    shares[path] = replace(shares.get(path, Share()), weight=weight)
    return replace(policy, shares=tuple(sorted(shares.items())))


def spec_of(document: object) -> SimulationSpec:
    """Parse a scenario."""
    words = _mapping(document, "the file")
    _only(words, WORDS, "the file")
    groups = _list(words.get("fleet"), "fleet")
    tenants = _list(words.get("tenants", []), "tenants")
    names = [
        _mapping(fields, f"tenants[{place}]").get("org") for place, fields in enumerate(tenants)
    ]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise SpecWrong(f"tenants: {twice[0]} occurs more than once")
    credits = _mapping(words.get("credits", {}), "credits")
    outages = _list(words.get("outages", []), "outages")
    return _checked(
        "the file",
        lambda: SimulationSpec(
            fleet=Fleet(
                groups=tuple(
                    _made(Group, fields, f"fleet[{place}]") for place, fields in enumerate(groups)
                )
            ),
            tenants=tuple(
                _tenant(fields, f"tenants[{place}]") for place, fields in enumerate(tenants)
            ),
            span=round(_number(words.get("days", 1), "days") * DAY),
            policy=parse_policy(words),
            credits=tuple(
                sorted(
                    (org, micros_of(amount, f"credits.{org}")) for org, amount in credits.items()
                )
            ),
            restart_cost=parse_span(words.get("restart_cost", 0), "restart_cost"),
            drain=parse_span(words.get("drain", "30d"), "drain"),
            speeds=_speeds(words.get("speed", {}), "speed"),
            readings=parse_span(words.get("readings", 0), "readings"),
            clocks=_made(ClockDrift, words.get("clocks", {}), "clocks"),
            admission=_optional(
                words, "admission", lambda fields, at: _made(Admission, fields, at)
            ),
            provision=_optional(words, "provision", _provision),
            outages=tuple(
                _made(Outage, fields, f"outages[{place}]") for place, fields in enumerate(outages)
            ),
        ),
    )


def micros_of(value: object, where: str) -> Micros:
    """Parse an amount of credits, exactly."""
    try:
        micros = Decimal(str(value)) * CREDIT
    except InvalidOperation:
        micros = Decimal(-1)
    wrong = isinstance(value, bool) or not micros.is_finite()
    if wrong or not 0 <= micros <= AMOUNT_MAX or micros % 1:
        raise SpecWrong(f"{where}: {value!r} is no amount of credits, such as 2.5")
    return int(micros)


# ----------------------------------------------------------------------------- parts


def _tenant(fields: object, where: str) -> SimulatedTenant:
    words = dict(_mapping(fields, where))
    arrivals = _made(ArrivalPattern, words.pop("arrivals", {}), f"{where}.arrivals")
    return replace(_made(SimulatedTenant, words, where), arrivals=arrivals)


def _provision(fields: object, where: str) -> Provision:
    words = dict(_mapping(fields, where))
    offers = _list(words.pop("offers", None), f"{where}.offers")
    words["offers"] = tuple(
        _made(Offer, offer, f"{where}.offers[{place}]") for place, offer in enumerate(offers)
    )
    return _made(Provision, words, where)


def _optional(words: Mapping[str, Any], name: str, read: Callable[[Any, str], T]) -> T | None:
    """An optional part of a scenario."""
    return read(words[name], name) if name in words else None


def _speeds(fields: object, where: str) -> tuple[tuple[str, int], ...]:
    """GPU types and their speeds, in millionths."""
    speeds = _mapping(fields, where)
    return tuple(
        sorted(
            (name, round(_number(speed, f"{where}.{name}") * PPM)) for name, speed in speeds.items()
        )
    )


def _weights(fields: Any, where: str) -> tuple[tuple[Size, int], ...]:
    """Sizes of jobs and their weights: a number, or a mapping."""
    weights = fields if isinstance(fields, Mapping) else {fields: 1}
    sizes = [(_checked(where, partial(size_of, size)), weight) for size, weight in weights.items()]
    return tuple(sorted(sizes, key=lambda entry: entry[0]))


_Read = Callable[[Any, str], Any]
_READ: Final[dict[tuple[type[Any], str], _Read]] = {
    (Admission, "every"): parse_span,
    (ClockDrift, "late"): parse_span,
    (Group, "price"): micros_of,
    (Group, "joins"): parse_span,
    (Group, "fails_every"): parse_span,
    (Group, "repaired_in"): parse_span,
    (ArrivalPattern, "burst_every"): parse_span,
    (ArrivalPattern, "burst_lasts"): parse_span,
    (ArrivalPattern, "peak_at"): parse_span,
    (ArrivalPattern, "begins"): parse_span,
    (ArrivalPattern, "ends"): parse_span,
    (SimulatedTenant, "gpus"): _weights,
    (SimulatedTenant, "types"): _texts,
    (SimulatedTenant, "run_median"): parse_span,
    (SimulatedTenant, "run_most"): parse_span,
    (SimulatedTenant, "checkpoint_every"): parse_span,
    (SimulatedTenant, "checkpoint_cost"): parse_span,
    (Offer, "price"): micros_of,
    (Offer, "delay"): parse_span,
    (Outage, "begins"): parse_span,
    (Outage, "lasts"): parse_span,
    (Provision, "every"): parse_span,
    (Provision, "keep"): parse_span,
    (Provision, "quiet"): parse_span,
}


def _made(kind: type[T], fields: object, where: str) -> T:
    """Build a value from a mapping of its fields."""
    return build(
        kind, fields, where, {name: read for (of, name), read in _READ.items() if of is kind}
    )


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 3_650:
        raise SpecWrong(f"{where} is a number above 0 and up to 3,650, not {value!r}")
    return value
