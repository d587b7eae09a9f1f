"""Protects the decoders of every request and response: bytes that are cut, changed or lie raise a DecodeError or decode,
never anything else, and cost no more memory than their size allows."""

from __future__ import annotations

import struct
import tracemalloc
from random import Random

import pytest

from kcli.protocol.apis import API_KEYS, METADATA, PRODUCE, Api
from kcli.protocol.codec_support import MAX_MESSAGE_ELEMENTS
from kcli.protocol.message_errors import DecodeError, UnsupportedVersionError
from tests.protocol.random_messages import APIS, EVERY_FORM, RandomMessages, message_type, random_bytes

FAST_TRIES, CI_TRIES = 12, 300
LIES = (b"\xff", b"\x7f", b"\x80", b"\0", b"\x01", b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff")


@pytest.mark.parametrize("side", ["request", "response"])
def test_every_message_comes_back_with_its_unknown_tagged_fields(side: str) -> None:
    for api, of, version in EVERY_FORM:
        if of == side:
            message, data = random_bytes(Random(f"{api.name} {version}"), api, side, version, unknown_tags=True)
            found = message_type(api, side)
            decoded, position = found.decode(memoryview(data), version)
            assert (decoded, position) == (message, len(data))
            assert found.encode(decoded) == data


def cut_everywhere(api: Api, side: str, version: int, seed: int) -> None:
    found = message_type(api, side)
    _message, data = random_bytes(Random(f"{api.name} {version} {seed}"), api, side, version, unknown_tags=True)
    sizes = range(len(data)) if len(data) < 400 else sorted(Random(seed).sample(range(len(data)), 400))
    for size in sizes:
        with pytest.raises(DecodeError):
            found.decode(data[:size], version)


def damage(api: Api, side: str, version: int, tries: int) -> int:
    """Decode damaged bytes; how many of them were read all the same."""
    rng, found, read = Random(f"{api.name} {side} {version}"), message_type(api, side), 0
    for _ in range(tries):
        data = bytearray(found.encode(RandomMessages(rng, unknown_tags=True).message(found, version)))
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(data) + 1)
            if rng.random() < 0.5 and at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            else:
                lie = rng.choice(LIES)
                data[at : at + len(lie)] = lie
        try:
            _decoded, position = found.decode(memoryview(data), version)
        except DecodeError:
            continue
        assert position <= len(data)
        read += 1
    return read


def test_cut_messages_are_refused() -> None:
    for api in APIS:
        for side in ("request", "response"):
            cut_everywhere(api, side, Random(api.key).randint(api.lowest_version, api.highest_version), 0)


def test_damaged_messages_are_refused_or_read() -> None:
    assert sum(damage(api, side, version, FAST_TRIES) for api, side, version in EVERY_FORM) > 0


@pytest.mark.ci
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_cut_and_damaged_messages_of_every_version(api: Api) -> None:
    for of, side, version in EVERY_FORM:
        if of is api:
            for seed in range(3):
                cut_everywhere(api, side, version, seed)
            damage(api, side, version, CI_TRIES)


@pytest.mark.parametrize("version", [-1, 99])
@pytest.mark.parametrize("side", ["request", "response"])
def test_versions_that_are_not_there(side: str, version: int) -> None:
    for api in APIS:
        with pytest.raises(
            UnsupportedVersionError, match=f"has no version {version}, only {api.lowest_version} to {api.highest_version}"
        ):
            message_type(api, side).decode(b"", version)


def peak_bytes(api: Api, version: int, data: bytes) -> int:
    """The most memory that refusing `data` takes."""
    with pytest.raises(DecodeError):
        api.request.decode(b"", version)  # its code is made now
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            api.request.decode(data, version)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("key", "version", "data"),
    [
        (METADATA, 8, struct.pack(">i", 2**31 - 1) + bytes(100)),
        (METADATA, 12, b"\x80\x80\x80\x80\x80\x01" + bytes(100)),
        (METADATA, 12, b"\xff\xff\xff\xff\x07" + bytes(100)),
        (PRODUCE, 8, struct.pack(">hhii", -1, 1, 1, 2**31 - 1)),
        (PRODUCE, 9, struct.pack(">Bhi", 0, 1, 1) + b"\x02\x02a\x02" + bytes(4) + b"\xff\xff\xff\xff\x07"),
        (PRODUCE, 9, struct.pack(">Bhi", 0, 1, 1) + b"\x01\xff\xff\xff\xff\x07"),
    ],
)
def test_a_lie_about_a_size_costs_nothing(key: int, version: int, data: bytes) -> None:
    assert peak_bytes(API_KEYS[key], version, data) < 20_000


def topics_request(count: int) -> bytes:
    """A Metadata request, version 12, of `count` topics of 18 bytes each."""
    stored = count + 1
    length = bytes((stored & 0x7F | 0x80, stored >> 7 & 0x7F | 0x80, stored >> 14))
    return length + (bytes(16) + b"\0\0") * count + b"\1\0\0"


def test_a_message_of_too_many_elements_is_refused_before_they_are_made() -> None:
    api = API_KEYS[METADATA]
    request, _ = api.request.decode(topics_request(MAX_MESSAGE_ELEMENTS - 1), 12)
    assert len(request.topics) == MAX_MESSAGE_ELEMENTS - 1
    del request
    with pytest.raises(DecodeError, match=f"more than {MAX_MESSAGE_ELEMENTS} elements"):
        api.request.decode(topics_request(MAX_MESSAGE_ELEMENTS + 1), 12)
    assert peak_bytes(api, 12, topics_request(MAX_MESSAGE_ELEMENTS + 1)) < 100_000
    # Each message has its own budget.
    assert api.request.decode(topics_request(MAX_MESSAGE_ELEMENTS - 1), 12)


@pytest.mark.ci
def test_a_message_of_too_many_nested_elements_costs_little() -> None:
    # 4,000 topics of 126 partitions each, which take 6 bytes: 3 MB that would be half a million objects.
    topic = b"\x02t\x7f" + (bytes(4) + b"\0\0") * 126 + b"\0"
    data = b"\0" + struct.pack(">hi", 1, 1) + b"\xa1\x1f" + topic * 4_000 + b"\0"
    api = API_KEYS[PRODUCE]
    assert api.request.decode(data.replace(b"\xa1\x1f", b"\x02", 1), 9)
    assert peak_bytes(api, 9, data) < 100 * MAX_MESSAGE_ELEMENTS + 10_000_000


def test_too_many_tagged_fields_are_refused() -> None:
    tags = b"".join(bytes((0x80 | at & 0x7F, at >> 7 & 0x7F | 0x80, at >> 14, 0)) for at in range(2**15, 2**15 + 70_000))
    api = API_KEYS[METADATA]
    data = b"\1\1\0" + b"\xf0\xa2\x04" + tags
    assert len(api.request.decode(data, 12)[0].unknown_tagged_fields) == 70_000
    with pytest.raises(DecodeError, match="elements"):
        api.request.decode(b"\1\1\0" + b"\x80\x80\x40" + tags, 12)


def test_large_messages_decode_to_the_same() -> None:
    for api, side, version in EVERY_FORM:
        message, data = random_bytes(Random(f"{api.name} {version} large"), api, side, version, unknown_tags=True)
        found = message_type(api, side)
        assert found.decode(data + bytes(MAX_MESSAGE_ELEMENTS), version) == (message, len(data))
