"""An address of a host as text and as the 4 or 16 bytes that an Envelope carries it in.

IPv4 is done here; what else there is needs the standard library's ipaddress, which costs a start 10 ms and is therefore
imported when it is needed.
"""

from __future__ import annotations

IPV4_BYTES = 4


def pack_host(host: str) -> bytes:
    """An address as bytes; an IPv6 one may have a scope, which is left out. Raises ValueError for a text that is none."""
    parts = host.split(".")
    if len(parts) == IPV4_BYTES and all(
        part.isascii() and part.isdigit() and len(part) <= 3 and int(part) < 256 for part in parts
    ):
        return bytes(map(int, parts))
    import ipaddress

    return ipaddress.ip_address(host).packed


def unpack_host(address: bytes) -> str:
    """Bytes as an address. Raises ValueError where they are neither 4 nor 16."""
    if len(address) == IPV4_BYTES:
        return ".".join(map(str, address))
    import ipaddress

    return str(ipaddress.ip_address(address))
