"""Protects the texts of records that cannot be read, as Kafka's tool words them, and what the typed way in refuses.

The expected texts were printed by Kafka 4.3.1; tests/oracle compares thousands more.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format.primitives import FormatError
from kcli.protocol.internal_records import (
    CLUSTER_METADATA,
    OFFSETS,
    REMOTE_LOG_METADATA,
    SHARE_GROUP_STATE,
    TRANSACTION_LOG,
    Decoder,
    decoder_for_topic,
    record_type_name,
)
from kcli.protocol.message_errors import DecodeError, MissingKeyError, UnknownRecordTypeError, UnsupportedVersionError
from kcli.protocol.message_types import message_types

DECODERS = [OFFSETS, TRANSACTION_LOG, SHARE_GROUP_STATE, CLUSTER_METADATA, REMOTE_LOG_METADATA]
SHOWN_KEY = '{"type":"1","data":{"group":"g","topic":"t","partition":0}}'
OFFSET_KEY = "0001 0001 67 0001 74 00000000"


def read(words: str) -> bytes:
    return bytes.fromhex(words)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        (OFFSET_KEY, None, (SHOWN_KEY, "<DELETE>")),
        ("0063 ab", None, ("Unknown record type 99 at offset 5, skipping.", None)),
        ("ffff", "", ("Unknown record type -1 at offset 5, skipping.", None)),
        ("00", "", ("Error at offset 5, skipping. Could not read version from key's buffer.", None)),
        (OFFSET_KEY, "", ("Error at offset 5, skipping. Could not read version from value's buffer.", None)),
        (OFFSET_KEY, "0005", ("Error at offset 5, skipping. Found an unknown record version 5 for 1 type", None)),
        (
            "0001 0001 67",
            "",
            ("Error at offset 5, skipping. Could not read record with version 1 from key's buffer due to: null.", None),
        ),
        (
            "0001 0009 67",
            "",
            (
                "Error at offset 5, skipping. Could not read record with version 1 from key's buffer due to: "
                "Error reading byte array of 9 byte(s): only 1 byte(s) available.",
                None,
            ),
        ),
        (
            OFFSET_KEY,
            "0000 0000000000000000 ffff",
            (
                "Error at offset 5, skipping. Could not read record with version 0 from value's buffer due to: "
                "non-nullable field metadata was serialized as null.",
                None,
            ),
        ),
        # What follows a whole message is ignored.
        (
            OFFSET_KEY + "ff",
            "0000 0000000000000007 0001 6d 0000000000000009 ffff",
            (SHOWN_KEY, '{"version":"0","data":{"offset":7,"metadata":"m","commitTimestamp":9}}'),
        ),
    ],
)
def test_coordinator_records_print_as_kafka_prints_them(key: str, value: str | None, shown: tuple[str, str | None]) -> None:
    assert OFFSETS.describe(5, read(key), None if value is None else read(value)) == shown


FENCE = "01 07 00 00000001 0000000000000002 00"
PARSE_ERROR = "Could not deserialize metadata record"


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        (FENCE, '{"type":"FENCE_BROKER_RECORD","version":0,"data":{"id":1,"epoch":2}}'),
        (FENCE.replace("07 00", "07 09"), '{"type":"FENCE_BROKER_RECORD","version":9,"data":{"id":1,"epoch":2}}'),
        (FENCE + "0102", "Error at 5, skipping. Found 2 byte(s) of garbage after 7"),
        (FENCE[:-3], "Error at 5, skipping. Failed to deserialize record with type 7"),
        (None, "Error at 5, skipping. Error while reading frame version"),
        ("", "Error at 5, skipping. Error while reading frame version"),
        ("01", "Error at 5, skipping. Error while reading type"),
        ("01 80", "Error at 5, skipping. Error while reading type"),
        ("01 07", "Error at 5, skipping. Error while reading version"),
        ("01 808004", "Error at 5, skipping. Value for type was too large."),
        (
            "01 63 00",
            "Error at 5, skipping. org.apache.kafka.common.errors.UnsupportedVersionException: Unknown metadata id 99",
        ),
        (
            "00",
            f"Error at 5, skipping. {PARSE_ERROR} with frame version 0. Note that upgrades from the preview release of "
            "KRaft in 2.8 to newer versions are not supported.",
        ),
        (
            "02",
            f"Error at 5, skipping. {PARSE_ERROR} due to unknown frame version 2(only frame version 1 is supported)",
        ),
    ],
)
def test_metadata_records_print_as_kafka_prints_them(value: str | None, payload: str) -> None:
    assert CLUSTER_METADATA.describe(5, b"ignored", None if value is None else read(value)) == (None, payload)


def test_remote_log_metadata_prints_as_java_describes_it() -> None:
    id_words = "0261 " + "00" * 16 + " 00000003 00"
    deleted = read("01 02 00" + id_words + "00000001 0000000000000002 02 00")
    assert REMOTE_LOG_METADATA.describe(5, None, deleted) == (
        None,
        "RemotePartitionDeleteMetadata{topicPartition=AAAAAAAAAAAAAAAAAAAAAA:a-3, state=DELETE_PARTITION_FINISHED, "
        "eventTimestampMs=2, brokerId=1}",
    )
    _, payload = REMOTE_LOG_METADATA.describe(5, None, None)
    assert payload is not None and payload.startswith("Error at offset 5, skipping. Cannot invoke ")


def test_a_coordinator_record_without_a_key_is_refused_with_kafkas_words() -> None:
    with pytest.raises(MissingKeyError, match=r"^Failed to decode message at offset 5 using the specified decoder"):
        OFFSETS.describe(5, None, b"")


def test_the_typed_way_in_refuses_what_it_cannot_read() -> None:
    with pytest.raises(UnknownRecordTypeError):
        OFFSETS.decode(read("0063"), None)
    with pytest.raises(MissingKeyError):
        TRANSACTION_LOG.decode(None, None)
    with pytest.raises(UnknownRecordTypeError):
        CLUSTER_METADATA.decode(None, read("01 63 00"))
    with pytest.raises(UnsupportedVersionError):
        CLUSTER_METADATA.decode(None, read(FENCE.replace("07 00", "07 09")))
    with pytest.raises(DecodeError, match="garbage"):
        CLUSTER_METADATA.decode(None, read(FENCE + "00"))
    with pytest.raises(DecodeError):
        CLUSTER_METADATA.decode(None, None)


def test_the_typed_way_in_gives_messages() -> None:
    key, value = OFFSETS.decode(read(OFFSET_KEY), None)
    assert key is not None and (key.group, key.topic, key.partition, value) == ("g", "t", 0, None)
    _, fenced = CLUSTER_METADATA.decode(None, read(FENCE))
    assert fenced is not None and (fenced.STRUCT.name, fenced.id, fenced.epoch) == ("FenceBrokerRecord", 1, 2)


def test_every_internal_topic_has_its_decoder_and_no_other() -> None:
    assert [decoder_for_topic(decoder.topic) for decoder in DECODERS] == DECODERS
    assert decoder_for_topic("orders") is None


def test_record_types_have_the_names_of_kafkas_enum() -> None:
    names = {record_type_name(found) for found in message_types("metadata_records").values()}
    assert {"TOPIC_RECORD", "NO_OP_RECORD", "ZK_MIGRATION_STATE_RECORD", "CLEAR_ELR_RECORD"} <= names


@settings(max_examples=500)
@given(
    st.sampled_from(DECODERS),
    st.none() | st.binary(max_size=12) | st.integers(0, 25).map(lambda kind: bytes([0, kind]) + bytes(20)),
    st.none() | st.binary(max_size=40) | st.binary(max_size=40).map(lambda data: b"\1" + data),
)
def test_no_bytes_make_a_decoder_do_anything_but_refuse(decoder: Decoder, key: bytes | None, value: bytes | None) -> None:
    try:
        key_text, payload = decoder.describe(5, key, value)
    except MissingKeyError:
        assert key is None
    else:
        (key_text or "").encode()
        (payload or "").encode()
    try:
        for message in decoder.decode(key, value):
            if message is not None:
                decoder.to_dict(message)
    except FormatError as error:
        assert str(error)
