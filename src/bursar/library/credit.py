"""Credits that expire, for use inside one process: earliest expiry first, no server needed.

The problem. Credits are bought in packs, each with an expiry; spending should use the pack first
that expires first. This is the classic exercise, with what a real program needs: several users,
reservations with idempotent retries, threads, and a ranking of balances.

    ledger = CreditLedger()
    ledger.add_credits(10, expiry_time=30)
    ledger.add_credits(20, expiry_time=50)
    ledger.consume_credits(15, current_time=20)   # 10 that expire at 30, 5 of the others
    ledger.get_balance(current_time=40)           # 15

A pack is valid at t if `expiry_time >= t`: the end is included. (In the service a grant is valid
while `t < expires_at`; a library expiry e is a service expiry e + 1.)

How. Each user has a dict from expiry to credits, and the distinct expiries in a `SortedSet`, the
structure that the core uses for spend order. Packs with the same expiry are one entry, so a million
small packs that expire at midnight cost as much as one. Expired packs are dropped at the user's
next call, so each pack is touched once when added and once when dropped.

Alternatives. A heap of packs is a little faster, but cannot refund credits to their pack or join
equal expiries. Summing the packs on each call is simpler, and slow.
"""

from dataclasses import dataclass
from threading import Lock
from typing import Final

from bursar.core.sorted_set import SortedSet
from bursar.library._checks import MAX_TIME, InsufficientCredits, bad_amount, bad_time

DEFAULT_USER: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Credits set aside for one purpose: to be committed, or refunded, in parts or whole."""

    id: int  # unique within its ledger
    user: str
    amount: int  # as reserved; never changes
    draws: tuple[tuple[int, int], ...]  # (expiry_time, amount) as taken, in order of spending


class _Account:
    """The credits of one user. `total` is the sum of `packs`, `order` their expiries."""

    __slots__ = ("alarm", "order", "packs", "rank", "total", "touched", "user")

    def __init__(self, user: str) -> None:
        self.user = user
        self.packs: dict[int, int] = {}
        self.order: SortedSet[int] = SortedSet()
        self.total = 0
        self.touched = False  # changed since it was ranked last
        self.rank: tuple[int, str] | None = None  # its key in the ranking
        self.alarm: tuple[int, str] | None = None  # its key among the coming expiries

    def drop_expired(self, now: int) -> None:
        """Drop packs that are no longer valid at `now`. A pack is still valid at its expiry."""
        order, packs = self.order, self.packs
        first = order.first()
        while first is not None and first < now:
            order.pop_first()
            self.total -= packs.pop(first)
            first = order.first()

    def put(self, amount: int, expiry: int) -> None:
        """Add credits to those of the same expiry."""
        packs = self.packs
        if expiry in packs:
            packs[expiry] += amount
        else:
            packs[expiry] = amount
            self.order.add(expiry)
        self.total += amount

    def take(self, amount: int) -> list[tuple[int, int]]:
        """Spend the earliest expiries first; the caller has checked that `total` is enough."""
        order, packs = self.order, self.packs
        self.total -= amount
        draws = []
        while amount:
            expiry = order.first()
            assert expiry is not None
            have = packs[expiry]
            if have > amount:
                packs[expiry] = have - amount
                draws.append((expiry, amount))
                break
            order.pop_first()
            draws.append((expiry, packs.pop(expiry)))
            amount -= have
        return draws


class _Open:
    """What is left of a reservation: `draws` in order of spending, summing up to `left`."""

    __slots__ = ("account", "draws", "left")

    def __init__(self, account: _Account, draws: list[tuple[int, int]], left: int) -> None:
        self.account = account
        self.draws = draws
        self.left = left


_Arguments = tuple[tuple[str, object], ...]  # a request: the names and values of its fields


class CreditLedger:
    """Packs of credits of several users, spent earliest expiry first; safe to share by threads.

    Every call is O(log n) in the number of distinct expiries of its user, plus the packs it
    uses up; `top_k` in addition ranks the users that changed since it was asked last.

    Time is the caller's: whole numbers from 0 to 2^63 - 1 that never go back within one ledger.
    A `current_time` before the latest one seen is a ValueError; `TimelineLedger` takes times in
    any order. A call that is refused for lack of credits has seen its time; a call with bad
    arguments has changed nothing at all.

    Answers to requests are kept for as long as the ledger lives, a few hundred bytes each, and
    so are the reservations they made.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._now = 0  # the latest time seen
        self._accounts: dict[str, _Account] = {}
        self._open: dict[int, _Open] = {}
        self._answers: dict[str, tuple[_Arguments, Reservation | int | None]] = {}
        self._touched: list[_Account] = []  # changed since the ranking was made
        self._ranking: SortedSet[tuple[int, str]] = SortedSet()  # (-balance, user)
        self._alarms: SortedSet[tuple[int, str]] = SortedSet()  # (first expiry, user), ranked users

    def add_credits(self, amount: int, expiry_time: int, *, user: str = DEFAULT_USER) -> None:
        """Give the user credits that are valid up to and including `expiry_time`.

        Credits that have expired by the latest time seen are accepted and worth nothing.
        """
        if type(amount) is not int or amount < 1:
            raise bad_amount("amount", amount)
        if type(expiry_time) is not int or not 0 <= expiry_time <= MAX_TIME:
            raise bad_time("expiry_time", expiry_time)
        with self._lock:
            account = self._accounts.get(user) or _empty_account(user)
            if expiry_time < self._now:
                return
            if not account.packs:
                self._accounts[user] = account
            packs = account.packs
            if expiry_time in packs:
                packs[expiry_time] += amount
            else:
                packs[expiry_time] = amount
                account.order.add(expiry_time)
            account.total += amount
            if not account.touched:
                account.touched = True
                self._touched.append(account)

    def consume_credits(
        self, amount: int, current_time: int, partial: bool = False, *, user: str = DEFAULT_USER
    ) -> int:
        """Spend credits, earliest expiry first, and return how many were spent.

        Raises InsufficientCredits and takes nothing when there are fewer than `amount`;
        with `partial` it takes what there is, be it nothing.
        """
        if type(amount) is not int or amount < 1:
            raise bad_amount("amount", amount)
        if type(current_time) is not int or not 0 <= current_time <= MAX_TIME:
            raise bad_time("current_time", current_time)
        if partial is not False and partial is not True:
            raise TypeError(f"partial must be a bool, not {type(partial).__name__}")
        with self._lock:
            account = self._accounts.get(user) or _empty_account(user)
            if current_time != self._now:
                self._advance(current_time)
            first = account.order.first()
            if first is None or first < current_time:
                account.drop_expired(current_time)
                first = account.order.first()
            if account.total < amount:
                if not partial:
                    raise InsufficientCredits(amount, account.total)
                amount = account.total
                if not amount:
                    return 0
            if not account.touched:
                account.touched = True
                self._touched.append(account)
            if first is not None and account.packs[first] > amount:
                account.packs[first] -= amount  # the common case: one pack is enough
                account.total -= amount
            else:
                account.take(amount)
            return amount

    def get_balance(self, current_time: int, *, user: str = DEFAULT_USER) -> int:
        """The credits the user can spend at that time; what is reserved is not among them."""
        if type(current_time) is not int or not 0 <= current_time <= MAX_TIME:
            raise bad_time("current_time", current_time)
        with self._lock:
            account = self._accounts.get(user) or _empty_account(user)
            if current_time != self._now:
                self._advance(current_time)
            first = account.order.first()
            if first is not None and first < current_time:
                account.drop_expired(current_time)
            return account.total

    def try_reserve(
        self, user: str, amount: int, current_time: int, *, request_id: str
    ) -> Reservation | None:
        """Set credits aside, all of `amount` or none; None when there are not enough.

        What is reserved stays usable by the reservation although its packs expire. A repeated
        `request_id` gives the first answer again and changes nothing; it may come at another
        time, since a caller who asks again has a later clock.
        """
        if type(amount) is not int or amount < 1:
            raise bad_amount("amount", amount)
        if type(current_time) is not int or not 0 <= current_time <= MAX_TIME:
            raise bad_time("current_time", current_time)
        _check_text("user", user)
        _check_text("request_id", request_id)
        arguments: _Arguments = (("operation", "try_reserve"), ("user", user), ("amount", amount))
        with self._lock:
            if request_id in self._answers:
                return self._first_answer(request_id, arguments)  # type: ignore[return-value]
            if current_time != self._now:
                self._advance(current_time)
            reservation = self._reserve(user, amount)
            self._answers[request_id] = (arguments, reservation)
            return reservation

    def commit(self, reservation_id: int, amount: int | None = None, *, request_id: str) -> int:
        """Spend reserved credits, all of the rest by default, and return how many.

        May be called several times. The rest may be nothing: then 0 is committed. Raises
        InsufficientCredits when the reservation has less left than `amount`, and LookupError
        when there is no such reservation.
        """
        arguments = self._check_arguments("commit", reservation_id, amount, request_id)
        with self._lock:
            if request_id in self._answers:
                return self._first_answer(request_id, arguments)  # type: ignore[return-value]
            taken, draws = self._part(reservation_id, amount)
            self._open[reservation_id].left -= taken
            _cut_front(draws, taken)
            self._answers[request_id] = (arguments, taken)
            return taken

    def refund(self, reservation_id: int, amount: int | None = None, *, request_id: str) -> int:
        """Give reserved credits back to the packs they came from, all of the rest by default.

        They go back in reverse order of spending. What has expired by the latest time seen
        does not come back: the answer is how many credits the user can spend again. Refused
        like `commit`.
        """
        arguments = self._check_arguments("refund", reservation_id, amount, request_id)
        with self._lock:
            if request_id in self._answers:
                return self._first_answer(request_id, arguments)  # type: ignore[return-value]
            taken, draws = self._part(reservation_id, amount)
            opened = self._open[reservation_id]
            opened.left -= taken
            returned = 0
            for expiry, part in _cut_back(draws, taken):
                if expiry >= self._now:
                    opened.account.put(part, expiry)
                    returned += part
            self._touch(opened.account)
            self._answers[request_id] = (arguments, returned)
            return returned

    def remaining(self, reservation_id: int) -> int:
        """What a reservation has left to be committed or refunded; 0 when it is closed."""
        if type(reservation_id) is not int:
            raise TypeError(f"reservation_id must be an int, not {type(reservation_id).__name__}")
        with self._lock:
            return self._part(reservation_id, None)[0]

    def top_k(self, k: int, current_time: int) -> list[tuple[str, int]]:
        """The `k` users with the largest balances, largest first, equal ones by name.

        Users who have nothing to spend at that time are not listed.
        """
        if type(k) is not int:
            raise TypeError(f"k must be an int, not {type(k).__name__}")
        if k < 0:
            raise ValueError(f"k must be at least 0, not {k}")
        if type(current_time) is not int or not 0 <= current_time <= MAX_TIME:
            raise bad_time("current_time", current_time)
        with self._lock:
            if current_time != self._now:
                self._advance(current_time)
            self._rank_again()
            best = zip(range(k), self._ranking, strict=False)
            return [(user, -minus_balance) for _, (minus_balance, user) in best]

    # The methods below are called with the lock held.

    def _advance(self, current_time: int) -> None:
        """Set the latest time; ValueError if it would go back."""
        if current_time < self._now:
            raise ValueError(
                f"current_time {current_time} is before {self._now}, the latest time seen;"
                " TimelineLedger takes times in any order"
            )
        self._now = current_time

    def _touch(self, account: _Account) -> None:
        """Mark the account's rank as out of date."""
        if not account.touched:
            account.touched = True
            self._touched.append(account)

    def _reserve(self, user: str, amount: int) -> Reservation | None:
        account = self._accounts.get(user)
        if account is None:
            return None
        account.drop_expired(self._now)
        if account.total < amount:
            return None
        draws = account.take(amount)
        self._touch(account)
        number = len(self._open) + 1
        self._open[number] = _Open(account, draws, amount)
        return Reservation(id=number, user=user, amount=amount, draws=tuple(draws))

    def _check_arguments(
        self, operation: str, reservation_id: int, amount: int | None, request_id: str
    ) -> _Arguments:
        """Check the arguments of commit and refund, and name them."""
        if type(reservation_id) is not int:
            raise TypeError(f"reservation_id must be an int, not {type(reservation_id).__name__}")
        if amount is not None and (type(amount) is not int or amount < 1):
            raise bad_amount("amount", amount)
        _check_text("request_id", request_id)
        return (
            ("operation", operation),
            ("reservation_id", reservation_id),
            ("amount", amount),
        )

    def _first_answer(self, request_id: str, arguments: _Arguments) -> Reservation | int | None:
        """The first answer to this request; ValueError if its arguments differ."""
        before, answer = self._answers[request_id]
        for (field, new), (_, old) in zip(arguments, before, strict=True):
            if new != old:
                raise ValueError(
                    f"request_id {request_id!r} was used before with another {field}:"
                    f" {old!r}, now {new!r}"
                )
        return answer

    def _part(self, reservation_id: int, amount: int | None) -> tuple[int, list[tuple[int, int]]]:
        """The requested part of a reservation, and its draws."""
        opened = self._open.get(reservation_id)
        if opened is None:
            raise LookupError(f"no reservation {reservation_id}")
        if amount is None:
            return opened.left, opened.draws
        if amount > opened.left:
            raise InsufficientCredits(amount, opened.left)
        return amount, opened.draws

    def _rank_again(self) -> None:
        """Update the ranking of accounts that changed or whose credits expired."""
        alarms, accounts = self._alarms, self._accounts
        alarm = alarms.first()
        while alarm is not None and alarm[0] < self._now:
            alarms.pop_first()
            account = accounts[alarm[1]]
            account.alarm = None
            self._touch(account)
            alarm = alarms.first()
        for account in self._touched:
            self._rank(account)
        self._touched.clear()

    def _rank(self, account: _Account) -> None:
        account.touched = False
        account.drop_expired(self._now)
        rank = (-account.total, account.user) if account.total else None
        if rank != account.rank:
            if account.rank is not None:
                self._ranking.discard(account.rank)
            if rank is not None:
                self._ranking.add(rank)
            account.rank = rank
        first = account.order.first()
        alarm = None if first is None else (first, account.user)
        if alarm != account.alarm:
            if account.alarm is not None:
                self._alarms.discard(account.alarm)
            if alarm is not None:
                self._alarms.add(alarm)
            account.alarm = alarm


def _empty_account(user: str) -> _Account:
    """An empty account for an unknown user; it is not stored."""
    _check_text("user", user)
    return _Account(user)


def _check_text(name: str, text: object) -> None:
    if type(text) is not str:
        raise TypeError(f"{name} must be a str, not {type(text).__name__}")


def _cut_front(draws: list[tuple[int, int]], amount: int) -> None:
    """Take `amount` off the draws that were spent first."""
    while amount:
        expiry, part = draws[0]
        if part > amount:
            draws[0] = (expiry, part - amount)
            return
        del draws[0]
        amount -= part


def _cut_back(draws: list[tuple[int, int]], amount: int) -> list[tuple[int, int]]:
    """Take `amount` off the draws that were spent last, and return what was taken."""
    cut = []
    while amount:
        expiry, part = draws[-1]
        if part > amount:
            draws[-1] = (expiry, part - amount)
            cut.append((expiry, amount))
            return cut
        cut.append(draws.pop())
        amount -= part
    return cut
