"""The three kinds of no are told apart, and each carries its figures."""

import pytest

from bursar.core.refusal import Code, Fault, InvariantBroken, Refusal, fail_invariant, invariant


def test_an_invariant_that_holds_does_not_raise() -> None:
    """The check has no other effect."""
    invariant(True, "never said", figure=1)


def test_a_broken_invariant_tells_its_figures() -> None:
    """A bug is reported with what was known when it was found."""
    with pytest.raises(
        InvariantBroken, match=r"^draws do not add up \(hold='h1', parts=\(1, 2\)\)$"
    ):
        invariant(False, "draws do not add up", hold="h1", parts=(1, 2))


def test_a_contradiction_without_figures_has_a_message() -> None:
    """Without figures there are no empty brackets."""
    with pytest.raises(InvariantBroken, match=r"^a state that cannot be$"):
        fail_invariant("a state that cannot be")
    with pytest.raises(InvariantBroken, match=r"^a state that cannot be \(at=5\)$"):
        fail_invariant("a state that cannot be", at=5)


def test_a_bug_is_not_a_fault() -> None:
    """What is caught to be tried again never catches a bug."""
    assert not issubclass(InvariantBroken, Fault)
    assert not issubclass(Fault, InvariantBroken)


def test_every_code_is_its_own_name() -> None:
    """Codes are stable words for clients: distinct, and spelled like their names."""
    assert {name: name.lower() for name in Code.__members__} == {
        name: code.value for name, code in Code.__members__.items()
    }
    assert len(Code.__members__) == len(set(Code)), "a name is an alias of another"


def test_unknown_ids_are_refused_before_missing_credits() -> None:
    """The order of the codes is the order of the checks: ids first, credits last."""
    order = list(Code)

    assert Code.ACCOUNT_UNKNOWN == order[0]
    assert [Code.DEBT_OUTSTANDING, Code.BUDGET_EXCEEDED, Code.INSUFFICIENT_CREDITS] == order[-3:]


def test_a_refusal_is_a_value() -> None:
    """Two refusals with the same code and figures are equal; none shares figures by accident."""
    one, other = Refusal(Code.HOLD_CLOSED), Refusal(Code.HOLD_CLOSED)

    assert one == other
    assert {} == one.figures
    assert one.figures is not other.figures
    assert Refusal(Code.HOLD_CLOSED, {"at": 5}) != one
