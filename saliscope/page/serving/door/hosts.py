"""The names under which the page answers, the websites that may use it, and the address of a visitor.

A website can let its own name point to this machine, and then read a page that answers any name (DNS rebinding). It
cannot do so with an address in digits, because a browser asks no name server for it. So the page answers

- the names of this machine (localhost, 127.0.0.1, [::1]), always;
- the host given by `--host`, and the address at which the connection has arrived;
- with `--host 0.0.0.0` or `::`, every address in digits, and the name of this machine, also with `.local`;
- the names in `SALISCOPE_HOSTS`, separated by commas, and on a Space its host.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterable
from typing import Any

from saliscope.errors import Refused
from saliscope.page.serving.door.refusals import Message

NOT_HERE = (
    "This page does not answer under the host of this request. Open it under a name of its machine, or add the host to "
    "SALISCOPE_HOSTS (names separated by commas) and start it again."
)
FOREIGN_PAGE = "Requests of other websites are not accepted."
ON_SPACE = bool(os.environ.get("SPACE_ID"))
FRAMES = "'self' https://huggingface.co" if ON_SPACE else "'self'"
"""The websites that may show the page in a frame, as a Space is shown."""
LOCAL = {"localhost", "127.0.0.1", "::1"}
WILDCARDS = {"0.0.0.0", "::"}
HOST = re.compile(r"(?P<name>[a-z0-9._-]+|\[(?P<six>[0-9a-f:.]+)\])(:\d{1,5})?", re.IGNORECASE)
FORWARDED = re.compile(rb"[\w.,:/ \[\]-]*")  # hosts, addresses, ports, schemes and paths


class Hosts:
    """The rules for one server. `host` is the address on which it listens, None for this machine only.

    Errors   Refused if `SALISCOPE_PROXIES` is not a number
    """

    def __init__(self, host: str | None = None, names: Iterable[str] | None = None, proxies: int | None = None) -> None:
        environment = os.environ
        host = (host or environment.get("GRADIO_SERVER_NAME") or "127.0.0.1").strip("[]").lower()
        given = environment.get("SALISCOPE_HOSTS", "").split(",") if names is None else names
        self.everywhere = host in WILDCARDS
        self.public = {name_of(each.strip()) for each in (*given, environment.get("SPACE_HOST", ""))} - {""}
        """Names that a proxy may have answered, which may differ from the header `Host`."""
        self.names = LOCAL | self.public
        if self.everywhere:
            machine = socket.gethostname().lower()
            self.names |= {machine, machine.partition(".")[0], f"{machine.partition('.')[0]}.local"}
        else:
            self.names.add(host)
        self.proxies = _number_of_proxies() if proxies is None else proxies
        """Number of proxies in front of the page whose `X-Forwarded-For` is believed."""

    @property
    def is_public(self) -> bool:
        """Whether the page answers under names of others than this machine, so that it may have visitors."""
        return self.everywhere or self.names != LOCAL

    def answers(self, host: str, scope: Message) -> bool:
        """Return whether the page answers under a host, as in the header `Host`."""
        name = name_of(host)
        if not name or name in self.names:
            return bool(name)
        address = address_of(name)
        if address is None:
            return False
        return self.everywhere or address.is_loopback or address == address_of((scope.get("server") or [""])[0])

    def answers_request(self, headers: dict[bytes, bytes], scope: Message) -> bool:
        """Return whether the page answers a request; the proxy of a Space may change `Host`."""
        forwarded = name_of(headers.get(b"x-forwarded-host", b"").decode("latin-1"))
        by_space = ON_SPACE and forwarded in self.public and _is_private(scope.get("client"))
        return by_space or self.answers(headers.get(b"host", b"").decode("latin-1"), scope)

    def is_foreign(self, origin: str, headers: dict[bytes, bytes]) -> bool:
        """Return whether a website other than the page itself has sent a request with this `Origin`."""
        scheme, separator, place = origin.lower().partition("://")
        if not separator or scheme not in ("http", "https"):  # "null" of a file or a frame in a sandbox
            return True
        own = {headers.get(name, b"").decode("latin-1").lower() for name in (b"host", b"x-forwarded-host")} - {""}
        return place not in own and name_of(place) not in self.public

    def forwarded(self, headers: list[tuple[bytes, bytes]], scope: Message) -> list[tuple[bytes, bytes]]:
        """Return the headers without those of a proxy, unless a proxy may have sent them.

        Gradio writes `X-Forwarded-Host` and `X-Gradio-Server` into the page, so a visitor could make a cache store a
        page with another host. The second one is for a server of Gradio that is not used here.
        """
        trusted = _is_private(scope.get("client"))

        def is_kept(name: bytes, value: bytes) -> bool:
            if name == b"x-forwarded-host":
                first = value.partition(b",")[0].strip()
                if first != dict(headers).get(b"host") and first.decode("latin-1").lower() not in self.public:
                    return False
            return not name.startswith(b"x-forwarded-") or (trusted and FORWARDED.fullmatch(value) is not None)

        return [pair for pair in headers if pair[0] != b"x-gradio-server" and is_kept(*pair)]

    def address(self, headers: list[tuple[bytes, bytes]], scope: Message) -> str:
        """Return the address of a visitor: an IPv4 address, or the first 64 bits of an IPv6 address.

        Every proxy adds the address from which it got the request at the right of `X-Forwarded-For`; what is to the
        left of the trusted ones, the visitor may have written.
        """
        peer = (scope.get("client") or [""])[0]
        if self.is_proxy(scope.get("client")):
            values = [value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for"]
            hops = [hop.strip() for hop in ",".join(values).split(",") if hop.strip()]
            if hops:
                hop = hops[-min(self.proxies, len(hops))]
                peer = name_of(hop) or hop  # without its port
        address = address_of(peer)
        if address is None:
            return "unknown"
        if isinstance(address, ipaddress.IPv6Address):
            return str(ipaddress.ip_network((address, 64), strict=False))
        return str(address)

    def is_proxy(self, client: Any) -> bool:
        """Return whether a connection, with its address and port, comes from a proxy that is believed."""
        return bool(self.proxies) and _is_private(client)


def _number_of_proxies() -> int:
    text = os.environ.get("SALISCOPE_PROXIES") or str(int(ON_SPACE))
    if not (text.isascii() and text.isdigit()):
        raise Refused(f"SALISCOPE_PROXIES is {text!r}. It must be the number of proxies in front of the page.")
    return int(text)


def name_of(host: str) -> str:
    """Return the name in a host with or without a port, in small letters, or an empty string if it is invalid."""
    found = HOST.fullmatch(host if host.count(":") < 2 or host.startswith("[") else f"[{host}]")
    return (found["six"] or found["name"]).lower().rstrip(".") if found else ""


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address, that of IPv4 inside IPv6 as IPv4; None for other text."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_private(client: Any) -> bool:
    """Return whether a request comes from this machine or a private network, as those of a proxy do."""
    try:
        return ipaddress.ip_address(client[0]).is_private
    except (TypeError, ValueError, IndexError):  # a socket of this machine has no address
        return client is None
