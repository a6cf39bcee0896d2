"""Costs as rows of FOCUS 1.2, the FinOps Open Cost and Usage Specification (O3).

Credits are the PricingCurrency: FOCUS 1.2 calls such a currency *virtual*. FOCUS also requires
costs and unit prices in a national currency, the BillingCurrency. The ledger has no exchange rate,
so a credit counts as one unit of the currency that the client names; the default is XXX, which is
ISO 4217's code for no currency.

    what happened          ChargeCategory   cost   x_Adjustment
    usage paid by credits  Usage            +
    a charge reversed      Adjustment       -      reversal
    work given back        Adjustment       -      given_back
    credits issued         Credit           -
    credits moved          Credit           +      (the receiver's are issued: -)
    credits lapsed         Adjustment       +      lapsed
    credits revoked        Adjustment       +      revoked

Usage is never netted with the credits that paid for it. The costs of a period add up to the
decrease of available and held credits. A correction (ChargeClass) changes what an earlier billing
period, a month of UTC, was billed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from types import MappingProxyType
from typing import Final

from bursar.core.instant import Instant
from bursar.core.money import CREDIT, Micros
from bursar.wire.tables import Cell
from bursar.wire.times import instant_text

VERSION: Final = "1.2"
VIRTUAL_CURRENCY: Final = "Credits"
NO_CURRENCY: Final = "XXX"
PROVIDER: Final = "Bursar"
SERVICE: Final = "GPU compute"
GPU_HOURS: Final = "GPU-Hours"
UNPRICED: Final = "amount"  # the SKU of usage that was charged as an amount

_MILLI_GPU_MS: Final = 3_600_000 * 1_000  # to the GPU-hour
_EXACT: Final = Context(prec=60, rounding=ROUND_HALF_EVEN)
_HOURS: Final = Decimal("1e-15")  # digits of a quantity of hours: a price times it is the cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cost. The properties give the values of the FOCUS columns."""

    category: str  # Usage, Credit or Adjustment
    adjustment: str | None  # the reason of an adjustment
    correction: bool
    description: str
    org: str
    org_name: str
    account: str
    account_name: str
    user: str | None
    gpu_type: str | None
    region: str | None
    rate: Micros | None  # per GPU-hour; None if an amount was charged
    grant: str | None
    credit_kind: str | None
    billed_from: Instant
    billed_to: Instant
    charged_from: Instant
    charged_to: Instant
    amount: Micros
    milli_gpu_ms: int
    currency: str

    @property
    def is_usage(self) -> bool:
        """Whether the row has a quantity and a unit price; other rows have only a cost."""
        return self.category == "Usage"

    @property
    def cost(self) -> Decimal:
        """The cost in credits, which is the same number in the billing currency."""
        return credits_of(self.amount)

    @property
    def gpu_hours(self) -> Decimal:
        """The metered GPU-hours."""
        return _EXACT.divide(self.milli_gpu_ms, _MILLI_GPU_MS).quantize(_HOURS, context=_EXACT)

    @property
    def unit_price(self) -> Decimal | None:
        """The price of a GPU-hour; of a credit, if an amount was charged."""
        if not self.is_usage:
            return None
        return credits_of(CREDIT if self.rate is None else self.rate)

    @property
    def quantity(self) -> Decimal | None:
        """The quantity that the cost is for: paid GPU-hours, or credits."""
        if not self.is_usage:
            return None
        if self.rate is None:
            return self.cost
        if self.rate == 0:
            return self.gpu_hours
        return _EXACT.divide(self.amount, self.rate).quantize(_HOURS, context=_EXACT)

    @property
    def consumed(self) -> Decimal | None:
        """The consumed quantity: metered GPU-hours, paid or not, or the charged amount."""
        if not self.is_usage:
            return None
        return self.cost if self.rate is None else self.gpu_hours

    @property
    def unit(self) -> str | None:
        """The unit of quantities."""
        if not self.is_usage:
            return None
        return VIRTUAL_CURRENCY if self.rate is None else GPU_HOURS

    @property
    def sku(self) -> str | None:
        """The GPU type that was priced, or `amount`."""
        if not self.is_usage:
            return None
        return UNPRICED if self.rate is None or self.gpu_type is None else self.gpu_type


def credits_of(amount: Micros) -> Decimal:
    """Convert micro-credits to credits, exactly."""
    return Decimal(amount).scaleb(-6, _EXACT)


def _time(at: Instant) -> str:
    """A time in the format of FOCUS, with seconds."""
    text = instant_text(at)
    assert text is not None
    return f"{text[:19]}Z"


Column = Callable[[Row], Cell]


def _nothing(_: Row) -> None:
    """The value of columns that FOCUS 1.0 requires and Bursar has no data for."""


# In the order of their names, as FOCUS recommends; Bursar's own columns are last.
COLUMNS: Final[Mapping[str, Column]] = MappingProxyType(
    {
        "BilledCost": lambda row: row.cost,
        "BillingAccountId": lambda row: row.org,
        "BillingAccountName": lambda row: row.org_name,
        "BillingCurrency": lambda row: row.currency,
        "BillingPeriodEnd": lambda row: _time(row.billed_to),
        "BillingPeriodStart": lambda row: _time(row.billed_from),
        "ChargeCategory": lambda row: row.category,
        "ChargeClass": lambda row: "Correction" if row.correction else None,
        "ChargeDescription": lambda row: row.description,
        "ChargeFrequency": lambda row: "Usage-Based" if row.is_usage else "One-Time",
        "ChargePeriodEnd": lambda row: _time(row.charged_to),
        "ChargePeriodStart": lambda row: _time(row.charged_from),
        "CommitmentDiscountCategory": _nothing,
        "CommitmentDiscountId": _nothing,
        "CommitmentDiscountName": _nothing,
        "CommitmentDiscountStatus": _nothing,
        "CommitmentDiscountType": _nothing,
        "ConsumedQuantity": lambda row: row.consumed,
        "ConsumedUnit": lambda row: row.unit,
        "ContractedCost": lambda row: row.cost,
        "ContractedUnitPrice": lambda row: row.unit_price,
        "EffectiveCost": lambda row: row.cost,
        "InvoiceIssuerName": lambda row: PROVIDER,
        "ListCost": lambda row: row.cost,
        "ListUnitPrice": lambda row: row.unit_price,
        "PricingCategory": lambda row: "Standard" if row.is_usage else None,
        "PricingCurrency": lambda row: VIRTUAL_CURRENCY,
        "PricingCurrencyContractedUnitPrice": lambda row: row.unit_price,
        "PricingCurrencyEffectiveCost": lambda row: row.cost,
        "PricingCurrencyListUnitPrice": lambda row: row.unit_price,
        "PricingQuantity": lambda row: row.quantity,
        "PricingUnit": lambda row: row.unit,
        "ProviderName": lambda row: PROVIDER,
        "PublisherName": lambda row: PROVIDER,
        "RegionId": lambda row: row.region,
        "RegionName": lambda row: row.region,
        "ResourceId": _nothing,
        "ResourceName": _nothing,
        "ResourceType": _nothing,
        "ServiceCategory": lambda row: "Compute",
        "ServiceName": lambda row: SERVICE,
        "ServiceSubcategory": lambda row: "Other (Compute)",
        "SkuId": lambda row: row.sku,
        "SkuMeter": lambda row: row.unit,
        "SkuPriceId": lambda row: row.sku,
        "SubAccountId": lambda row: row.account,
        "SubAccountName": lambda row: row.account_name,
        "Tags": _nothing,
        "x_Adjustment": lambda row: row.adjustment,
        "x_AmountMicros": lambda row: row.amount,
        "x_CreditKind": lambda row: row.credit_kind,
        "x_GpuType": lambda row: row.gpu_type,
        "x_GrantId": lambda row: row.grant,
        "x_UserId": lambda row: row.user,
    }
)


def cells(row: Row) -> list[Cell]:
    """The cells of a row, in the order of the columns."""
    return [column(row) for column in COLUMNS.values()]
