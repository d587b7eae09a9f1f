"""Protects the generated codecs: what is encoded decodes to the same, in every version of every declaration, and bytes that
are cut, changed or lie about their lengths are refused with a FormatError, never with anything else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import FormatError
from kcli.protocol.compiler import MessageType
from kcli.protocol.message import Message
from kcli.protocol.message_errors import DecodeError, EncodeError, NotInVersionError, UnsupportedVersionError
from kcli.protocol.schema import parse_schemas
from tests.protocol.messages import ALL_VERSIONS, messages, version_id

EVERY_TYPE = """
data Every versions=0-3 flexible=2+
  Flag bool
  Tiny int8
  Small int16
  Port uint16
  Number int32
  Crc uint32
  Big int64
  Ratio float64
  Id uuid
  Text string null=1+
  Raw bytes null=1+ default=null
  Rows records null=0+
  Names []string
  Ids []uuid
  Numbers []int32 null=1+
  Blobs []bytes
  Inner Inner null=1+ default=null
    Value int32 default=7
    Note string 1+ default="none"
  Many []Inner
  OldClientId string null=0+ flexible=none
  Later int16 3+ default=-1
  Lost int16 3+ default=-1 ignorable
  TaggedText string 2+ tag=0@2+ default="x"
  TaggedInner Inner 2+ null=3+ tag=1@2+
  TaggedMany []Inner 3+ tag=5@3+
"""
EVERY = MessageType(parse_schemas(EVERY_TYPE)[0])
any_version = st.sampled_from([*ALL_VERSIONS, *[(EVERY, version) for version in range(4)] * 20])


@st.composite
def any_messages(draw: st.DrawFn) -> tuple[MessageType, Message, bytes]:
    found, version = draw(any_version)
    message = draw(messages(found, version))
    return found, message, found.encode(message)


@settings(max_examples=400)
@given(any_messages())
def test_what_is_encoded_decodes_to_the_same(given: tuple[MessageType, Message, bytes]) -> None:
    found, message, data = given
    version = message.schema_version
    for view in (data, memoryview(data), bytearray(data)):
        decoded, position = found.decode(view, version)
        assert (decoded, position, decoded.schema_version) == (message, len(data), version)
    # Within other bytes, and with bytes behind it that are not its own.
    assert found.decode(b"ab" + data + b"\xff\xff", version, 2) == (message, len(data) + 2)


@settings(max_examples=300)
@given(any_messages(), st.data())
def test_damaged_bytes_are_refused_or_read_but_never_crash(
    given: tuple[MessageType, Message, bytes], data: st.DataObject
) -> None:
    found, message, encoded = given
    damaged = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 3))):
        if damaged:
            at = data.draw(st.integers(0, len(damaged) - 1))
            damaged[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]))
    for candidate in (bytes(damaged), bytes(damaged) + b"\x80" * 6):
        try:
            _, position = found.decode(candidate, message.schema_version)
        except FormatError:
            continue
        assert 0 <= position <= len(candidate)


@settings(max_examples=200)
@given(any_version, st.binary(max_size=60))
def test_any_bytes_are_refused_or_read(found: tuple[MessageType, int], data: bytes) -> None:
    try:
        found[0].decode(data, found[1])
    except FormatError:
        pass


@pytest.mark.parametrize(("found", "version"), ALL_VERSIONS, ids=version_id)
def test_every_cut_through_a_message_is_refused(found: MessageType, version: int) -> None:
    data = found.encode(found.new(schema_version=version))
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            found.decode(data[:size], version)


def test_a_length_beyond_what_is_left_is_refused_before_anything_is_made() -> None:
    fixed = bytes(46)
    for version, lie in ((0, b"\x7f\xff"), (1, b"\x00\x09"), (2, b"\x0a"), (2, b"\xff\xff\xff\xff\x07")):
        with pytest.raises(DecodeError, match=r"text|available|left"):
            EVERY.decode(fixed + lie + b"abc", version)
    # 2**31 - 1 elements of which none is there
    found = MessageType(parse_schemas("data Many versions=0-1 flexible=1+\n  Numbers []int64\n")[0])
    for version, lie in ((0, b"\x7f\xff\xff\xff"), (1, b"\xff\xff\xff\xff\x07"), (0, b"\0\0\0\4abcd")):
        with pytest.raises(DecodeError):
            found.decode(lie, version)


def test_null_is_refused_with_kafkas_words_where_it_may_not_be() -> None:
    with pytest.raises(DecodeError, match=r"^non-nullable field text was serialized as null$"):
        EVERY.decode(bytes(46) + b"\xff\xff", 0)
    with pytest.raises(NotInVersionError, match="field text must not be null"):
        EVERY.encode(EVERY.new(text=None), 0)
    assert EVERY.decode(EVERY.encode(EVERY.new(text=None), 1), 1)[0].text is None


def test_a_varint_of_more_than_five_bytes_is_refused_with_kafkas_words() -> None:
    with pytest.raises(DecodeError) as refused:
        EVERY.decode(bytes(46) + b"\xff" * 6, 2)
    assert refused.value.java_message == (
        "Varint is too long, the most significant bit in the 5th byte is set, converted value: ffffffff"
    )


def test_values_that_a_version_would_lose_are_refused_unless_they_may_be_lost() -> None:
    with pytest.raises(EncodeError, match=r"^Attempted to write a non-default later at version 2$"):
        EVERY.encode(EVERY.new(later=5), 2)
    with pytest.raises(EncodeError, match="taggedText"):
        EVERY.encode(EVERY.new(tagged_text="y"), 1)
    assert EVERY.decode(EVERY.encode(EVERY.new(lost=5), 2), 2)[0].lost == -1


def test_unknown_tagged_fields_are_kept_in_their_order_and_refused_where_there_are_none() -> None:
    message = EVERY.new(unknown_tagged_fields=((2, b"ab"), (300, b"")), tagged_many=[EVERY.classes["Inner"](value=1)])
    data = EVERY.encode(message)
    assert EVERY.decode(data, 3)[0] == message
    # 2 stands before the known 5, 300 behind it
    assert data.endswith(bytes.fromhex("03 0202 6162 05 0b 02 00000001 056e6f6e6500 ac02 00"))
    with pytest.raises(EncodeError, match="does not support them"):
        EVERY.encode(EVERY.new(unknown_tagged_fields=((2, b"ab"),)), 1)
    with pytest.raises(EncodeError, match="duplicate tag 5"):
        EVERY.encode(EVERY.new(unknown_tagged_fields=((5, b"ab"),), tagged_many=[EVERY.classes["Inner"]()]), 3)


def test_a_tag_of_another_version_is_refused() -> None:
    data = EVERY.encode(EVERY.new(), 2)
    with pytest.raises(DecodeError, match=r"^Tag 5 is not valid for version 2$"):
        EVERY.decode(data[:-1] + b"\x01\x05\x01\x00", 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number", 2**31),
        ("number", None),
        ("number", "1"),
        ("port", -1),
        ("id", b"short"),
        ("id", b"x" * 17),
        ("ids", [b""]),
        ("text", 5),
        ("text", "x" * 32768),
        ("text", "\ud800"),
        ("names", None),
        ("names", [None]),
        ("raw", "text"),
        ("raw", [300]),
        ("many", [None]),
        ("numbers", [2**31]),
        ("inner", 5),
    ],
)
def test_values_that_do_not_fit_are_refused(field: str, value: object) -> None:
    """The error names the field, which an error of struct does not."""
    with pytest.raises(EncodeError, match=rf"^Every version 3: field {field}\b|^field {field} |^'{field}' field"):
        EVERY.encode(EVERY.new(**{field: value}))


def test_versions_that_a_message_does_not_have_are_refused() -> None:
    for version in (-1, 4):
        with pytest.raises(UnsupportedVersionError, match="0 to 3"):
            EVERY.decode(b"", version)
        with pytest.raises(UnsupportedVersionError, match="0 to 3"):
            EVERY.encode(EVERY.new(), version)


def test_fresh_messages_share_nothing() -> None:
    left, right = EVERY.new(), EVERY.new()
    left.names.append("a")
    with pytest.raises(AttributeError, match="assign a new Inner to change its value"):
        left.tagged_inner.value = 1
    left.tagged_inner = EVERY.classes["Inner"](value=1)
    assert (right.names, right.tagged_inner.value) == ([], 7)
    assert left != right
    assert EVERY.new() == right
    # Equal to the default, but not the one that all share.
    right.tagged_inner = EVERY.classes["Inner"]()
    assert EVERY.new() == right
    assert right == EVERY.new()
    assert EVERY.encode(right, 3) == EVERY.encode(EVERY.new(), 3)
    with pytest.raises(AttributeError):
        left.no_such_field = 1


def test_bytes_that_are_known_from_kafka() -> None:
    # TopicRecord of the given directories, written by Kafka 4.3.1: name "a", an id, no tagged fields
    found = next(found for found, _ in ALL_VERSIONS if found.name == "TopicRecord")
    message = found.new(name="a", topic_id=Uuid(bytes(range(16))))
    assert found.encode(message).hex() == "0261" + bytes(range(16)).hex() + "00"


def test_text_that_is_not_utf8_reads_with_replacement_characters() -> None:
    found = next(found for found, _ in ALL_VERSIONS if found.name == "TransactionLogKey")
    assert found.decode(b"\0\3a\xffb", 0)[0].transactional_id == "a\ufffdb"


def test_generated_source_can_be_read() -> None:
    assert "m.partition_id, m.topic_id = unpack_i16s(data, at)" in next(
        found for found, _ in ALL_VERSIONS if found.name == "PartitionRecord"
    ).source("decode", 0)
    assert "def encode_Every(out, m):" in EVERY.source("encode", 3)
