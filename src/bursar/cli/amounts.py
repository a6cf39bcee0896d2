"""Parses and formats amounts of credits, exact to the micro-credit and without floats."""

import re
from typing import Final

from bursar.core.money import AMOUNT_MAX, CREDIT, Micros

UNIT: Final = "cr"
_DIGITS: Final = len(str(CREDIT)) - 1
_CREDITS_TEXT: Final = re.compile(rf"(\d+)(?:\.(\d{{1,{_DIGITS}}}))?(?: ?{UNIT})?", re.ASCII)
_MICROS_TEXT: Final = re.compile(r"(\d+)u", re.ASCII)
_LENGTH_MAX: Final = 40  # characters that are read at all


def parse_amount(text: str) -> Micros:
    """Parse an amount: `12.5` credits, or `12500000u` micro-credits."""
    micros = _parse(text.strip())
    if micros is None:
        raise ValueError(
            f"{text[:_LENGTH_MAX]!r} is not an amount: write credits with at most {_DIGITS}"
            " decimals, such as 12.5, or micro-credits, such as 12500000u"
        )
    if micros > AMOUNT_MAX:
        raise ValueError(
            f"{text[:_LENGTH_MAX]} is too large: the maximum is {format_credits(AMOUNT_MAX)}"
        )
    return micros


def _parse(text: str) -> Micros | None:
    if len(text) > _LENGTH_MAX:
        return None
    if match := _MICROS_TEXT.fullmatch(text):
        return int(match[1])
    if match := _CREDITS_TEXT.fullmatch(text):
        return int(match[1]) * CREDIT + int((match[2] or "").ljust(_DIGITS, "0"))
    return None


def format_credits(micros: Micros) -> str:
    """An amount in credits, exactly, with at least two decimals and its unit: `1,250.50 cr`."""
    whole, part = divmod(abs(micros), CREDIT)
    decimals = f"{part:0{_DIGITS}d}".rstrip("0").ljust(2, "0")
    return f"{'-' if micros < 0 else ''}{whole:,}.{decimals} {UNIT}"
