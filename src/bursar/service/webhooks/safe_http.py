"""HTTP calls to URLs that tenants chose: the address is checked before anything is sent.

A tenant's URL must not lead into our own network (SSRF). A name is resolved once, all its addresses
are checked, and the connection goes to one of them: a name that resolves to something else a moment
later (DNS rebinding) has no effect. Redirects are not followed. Of an answer only the status
counts; its body is read up to a limit and dropped.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

import httpx2

VARIABLE: Final = "BURSAR_ALLOW_PRIVATE_WEBHOOKS"
TIMEOUT_S: Final = 10.0  # for everything: resolving, connecting, sending, the answer
ANSWER_BYTES_MAX: Final = 65_536  # bytes of an answer that are read
URL_MAX: Final = 2_048
RESOLVE_S: Final = 5.0

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

# What the registries of special addresses list (RFC 6890), whatever this Python knows of it, and
# multicast. Last, an address that is public, and yet a way to a cloud's own services.
_SPECIAL_4: Final = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24"),
        *("192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",
    )
)
_INTERNET_6: Final = ipaddress.IPv6Network("2000::/3")  # all allocated addresses
# Of that: protocols (Teredo among them), examples, 6to4, and AS112's.
_SPECIAL_6: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)
# An IPv4 address that is written as one of IPv6, or that a translator (NAT64) is asked to call. A
# network's own translators (64:ff9b:1::/48 and others) lead where only that network knows.
_EMBEDS_IPV4: Final = tuple(
    ipaddress.IPv6Network(network) for network in ("::ffff:0:0/96", "64:ff9b::/96")
)


class UnsafeUrl(ValueError):
    """A URL to which nothing may be sent."""


@dataclass(frozen=True, slots=True)
class HttpOutcome:
    """The outcome of a call: a status, or why there is none."""

    code: int | None
    why: str | None

    @property
    def arrived(self) -> bool:
        """Whether the receiver has accepted it."""
        return self.code is not None and 200 <= self.code < 300


def is_public(address: Address) -> bool:
    """Whether an address is public: on the internet, and of no special use."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not any(address in network for network in _SPECIAL_4)
    if address.scope_id is not None:
        return False
    if any(address in network for network in _EMBEDS_IPV4):
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    special = any(address in network for network in _SPECIAL_6)
    return address in _INTERNET_6 and address.is_global and not special


async def _resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, in the system's order of preference."""
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in entries))


@dataclass(slots=True)
class SafeHttpClient:
    """Sends requests to URLs that tenants chose."""

    allow_private: bool = False  # the operator's choice: any address, and plain HTTP
    resolve: Resolve = _resolve
    timeout_s: float = TIMEOUT_S
    _tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)

    def parse(self, url: str) -> SplitResult:
        """The parts of a URL that may be called; raises `UnsafeUrl` with the reason otherwise."""
        if len(url) > URL_MAX or not url.isascii() or any(character <= " " for character in url):
            raise UnsafeUrl(f"a URL has at most {URL_MAX} visible ASCII characters")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UnsafeUrl(f"not a valid URL: {error}") from None
        schemes = ("https", "http") if self.allow_private else ("https",)
        if parts.scheme not in schemes:
            raise UnsafeUrl(
                f"a URL begins with {' or '.join(f'{scheme}://' for scheme in schemes)}"
            )
        if not parts.hostname or port == 0:
            raise UnsafeUrl("the URL has no host")
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise UnsafeUrl("the URL must not contain a user, a password or a fragment")
        return parts

    async def addresses(self, url: str) -> list[str]:
        """The addresses of a URL; raises `UnsafeUrl` unless all of them may be called."""
        parts = self.parse(url)
        assert parts.hostname is not None
        try:
            async with asyncio.timeout(RESOLVE_S):
                addresses = await self.resolve(parts.hostname, _port(parts))
        except (OSError, UnicodeError, TimeoutError):
            raise UnsafeUrl("the host's name cannot be resolved") from None
        if not addresses:
            raise UnsafeUrl("the host's name cannot be resolved")
        for address in addresses:
            if not self.allow_private and not is_public(ipaddress.ip_address(address)):
                raise UnsafeUrl("the host is not on the public internet")
        return list(addresses)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpOutcome:
        """Send a request; every failure is an outcome."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._post(url, headers, body)
        except TimeoutError:
            return HttpOutcome(None, "timeout")
        except UnsafeUrl as error:
            return HttpOutcome(None, str(error))
        except httpx2.ConnectError as error:
            tls = isinstance(_first_cause(error), ssl.SSLError)
            return HttpOutcome(None, "tls" if tls else "connection refused")
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError):
            return HttpOutcome(None, "connection lost")

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpOutcome:
        addresses = await self.addresses(url)
        limits = httpx2.Limits(max_connections=1, max_keepalive_connections=0)
        client = httpx2.AsyncClient(
            verify=self._tls, trust_env=False, timeout=self.timeout_s, limits=limits
        )
        async with client:
            for address in addresses[:-1]:
                try:
                    return await self._send(client, url, address, headers, body)
                except (httpx2.ConnectError, httpx2.ConnectTimeout):
                    continue  # nothing was sent; the next address may answer
            return await self._send(client, url, addresses[-1], headers, body)

    async def _send(
        self,
        client: httpx2.AsyncClient,
        url: str,
        address: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> HttpOutcome:
        """Send to this address only, with the URL's host name."""
        parts = urlsplit(url)
        at = f"[{address}]" if ":" in address else address
        pinned = parts._replace(netloc=f"{at}:{_port(parts)}").geturl()
        _, _, host = parts.netloc.rpartition("@")
        sent_headers = {
            **headers,
            "host": host,
            "accept-encoding": "identity",
            "connection": "close",
        }
        extensions = {"sni_hostname": parts.hostname}
        sending = client.stream(
            "POST", pinned, headers=sent_headers, content=body, extensions=extensions
        )
        async with sending as answer:
            read = 0
            async for chunk in answer.aiter_raw():
                read += len(chunk)
                if read > ANSWER_BYTES_MAX:
                    break
            code = answer.status_code
        return HttpOutcome(code, "redirects are not followed" if 300 <= code < 400 else None)


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _first_cause(error: BaseException) -> BaseException:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error
