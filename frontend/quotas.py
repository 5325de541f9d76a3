"""What each tenant may still use, in byte-seconds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.errors import NotNow
from frontend.tenants import Tenant


class Quotas:
    """A token bucket of byte-seconds for each tenant that has a quota; full at the start.

    A request takes its price x the seconds it is expected to hold it, and the difference is made up when it has
    ended. What takes more than a full bucket goes when the bucket is full, and leaves it overdrawn.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._levels: dict[str, tuple[float, float]] = {}
        """Tenant -> byte-seconds left, and when that was."""

    @contextmanager
    def spending(self, tenant: Tenant, price_bytes: int) -> Iterator["Spending"]:
        """For the life of one request; at the end it has taken what was held, nothing if it never began."""
        spending = Spending(self, tenant, price_bytes, self._clock)
        try:
            yield spending
        finally:
            self._add(tenant, spending.taken_byte_s - spending.used_byte_s)

    def level_byte_s(self, tenant: Tenant) -> float | None:
        """Byte-seconds that are left now, below 0 where it is overdrawn; None without a quota."""
        if tenant.quota_bytes is None or tenant.most_byte_s is None:
            return None
        now_s = self._clock()
        left_byte_s, then_s = self._levels.get(tenant.name, (tenant.most_byte_s, now_s))
        return min(tenant.most_byte_s, left_byte_s + tenant.quota_bytes * (now_s - then_s))

    def take(self, tenant: Tenant, byte_s: float) -> None:
        """Takes what a request is expected to use; raises NotNow with the numbers where it is not there yet."""
        left_byte_s = self.level_byte_s(tenant)
        if left_byte_s is None or tenant.quota_bytes is None or tenant.most_byte_s is None:
            return
        short_byte_s = min(byte_s, tenant.most_byte_s) - left_byte_s
        if short_byte_s > 0:
            wait_s = short_byte_s / tenant.quota_bytes
            raise NotNow(
                f"tenant {tenant.name!r} has {left_byte_s:,.0f} byte-seconds of its quota left, the request is expected"
                f" to use {byte_s:,.0f}; at {tenant.quota_bytes:,} bytes on average it can go in {wait_s:.1f} s",
                numbers={
                    "price_byte_seconds": int(byte_s),
                    "available_byte_seconds": int(left_byte_s),
                    "capacity_byte_seconds": int(tenant.most_byte_s),
                    "quota_bytes": tenant.quota_bytes,
                },
                retry_after_s=wait_s,
            )
        self._add(tenant, -byte_s)

    def _add(self, tenant: Tenant, byte_s: float) -> None:
        left_byte_s = self.level_byte_s(tenant)
        if left_byte_s is not None and tenant.most_byte_s is not None:
            self._levels[tenant.name] = (min(tenant.most_byte_s, left_byte_s + byte_s), self._clock())


class Spending:
    """What one request takes: an estimate at first, in the end what it held for as long as it held it."""

    def __init__(self, quotas: Quotas, tenant: Tenant, price_bytes: int, clock: Callable[[], float]) -> None:
        self.taken_byte_s = 0.0
        self._quotas = quotas
        self._tenant = tenant
        self._price_bytes = price_bytes
        self._clock = clock
        self._began_s: float | None = None

    def estimate(self, expected_s: float) -> None:
        """Takes the price for the seconds it is expected to be held; raises NotNow where the quota has it not."""
        byte_s = self._price_bytes * expected_s
        self._quotas.take(self._tenant, byte_s)
        self.taken_byte_s = byte_s

    def begin(self) -> None:
        """From now on the price is held."""
        self._began_s = self._clock()

    @property
    def used_byte_s(self) -> float:
        """Byte-seconds so far."""
        return 0.0 if self._began_s is None else self._price_bytes * (self._clock() - self._began_s)
