"""Protects the reading of what Kafka wrote: every internal record of the given directories reads, prints as Kafka's own
tool prints it, and is written again as the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcli.format.java_text import json_text
from kcli.protocol.control_records import control_suffix, decode_control_record
from kcli.protocol.internal_records import FramedDecoder, decode_consumer_protocol, decoder_for_topic
from kcli.protocol.json_values import to_dict
from kcli.protocol.message_types import message_type, record_types
from tests.protocol.given_logs import GIVEN, given_records, internal_files
from tests.protocol.json_reader import from_dict

FILES = internal_files()
pytestmark = pytest.mark.skipif(not FILES, reason="neither fixtures/ nor ../shared holds a given log directory")
given = pytest.mark.parametrize(("topic", "file", "dump"), FILES, ids=lambda value: getattr(value, "name", value))


def encoded(topic: str, key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
    """The record decoded and encoded again."""
    decoder = decoder_for_topic(topic)
    assert decoder is not None
    key_message, value_message = decoder.decode(key, value)
    if isinstance(decoder, FramedDecoder):
        assert value is not None and value_message is not None
        # The frame's three numbers are small, one byte each.
        found = record_types("metadata_records", "metadata")[value[1]]
        return key, value[:3] + found.encode(value_message)
    assert key is not None and key_message is not None
    file = {"__consumer_offsets": "group", "__transaction_state": "transaction", "__share_group_state": "share"}[topic]
    key_out = key[:2] + message_type(f"{file}_records", key_message.STRUCT.name).encode(key_message)
    if value is None or value_message is None:
        return key_out, None
    return key_out, value[:2] + message_type(f"{file}_records", value_message.STRUCT.name).encode(value_message)


@given
def test_every_record_is_written_again_as_the_same_bytes(topic: str, file: Path, dump: Path) -> None:
    for batch, record, _ in given_records(file, dump):
        if not batch.is_control:
            assert encoded(topic, record.key, record.value) == (record.key, record.value)


@given
def test_every_record_prints_as_kafka_prints_it(topic: str, file: Path, dump: Path) -> None:
    decoder = decoder_for_topic(topic)
    assert decoder is not None
    for found in given_records(file, dump):
        key, value = found.record.key, found.record.value
        if found.batch.is_control:
            expected = control_suffix(key, value)
        else:
            key_text, payload = decoder.describe(found.offset, key, value)
            expected = "" if key_text is None else f" key: {key_text}"
            expected += "" if payload is None else f" payload: {payload}"
        _, _, shown = found.line.partition(" headerKeys: []")
        assert shown == expected


@given
def test_control_records_are_written_again_as_the_same_bytes(topic: str, file: Path, dump: Path) -> None:
    for batch, record, _ in given_records(file, dump):
        if batch.is_control:
            control = decode_control_record(record.key, record.value)
            assert control.message is not None and record.value is not None
            prefix = record.value[:2] if control.is_marker else b""
            found = message_type("control_records", control.message.STRUCT.name)
            assert prefix + found.encode(control.message, 0) == record.value


@given
def test_json_reads_back_as_the_message(topic: str, file: Path, dump: Path) -> None:
    decoder = decoder_for_topic(topic)
    assert decoder is not None
    for batch, record, _ in given_records(file, dump):
        if batch.is_control:
            continue
        for message in decoder.decode(record.key, record.value):
            if message is not None and message.STRUCT.name != "GroupMetadataValue":
                name = message.STRUCT.name
                file_of = {"__cluster_metadata": "metadata", "__consumer_offsets": "group"}.get(topic, topic.split("_")[2])
                found = message_type(f"{file_of}_records", name)
                assert from_dict(found, message.schema_version, decoder.to_dict(message)) == message


def test_what_classic_consumers_hide_in_their_group_is_written_again_as_the_same_bytes() -> None:
    count = 0
    for topic, file, dump in FILES:
        if topic != "__consumer_offsets":
            continue
        decoder = decoder_for_topic(topic)
        assert decoder is not None
        for batch, record, _ in given_records(file, dump):
            value = None if batch.is_control else decoder.decode(record.key, record.value)[1]
            if value is not None and value.STRUCT.name == "GroupMetadataValue":
                for member in value.members:
                    for name, data in (("Subscription", member.subscription), ("Assignment", member.assignment)):
                        if data:
                            found = message_type("control_records", f"ConsumerProtocol{name}")
                            message = decode_consumer_protocol(found.name, data)
                            assert data[:2] + found.encode(message) == data
                            count += 1
    assert count > 0


def test_the_quorum_state_file_is_written_again_as_the_same_bytes() -> None:
    found = message_type("control_records", "QuorumStateData")
    files = [given / "data" / "__cluster_metadata-0" / "quorum-state" for given in GIVEN]
    assert files
    for file in files:
        shown = json.loads(file.read_bytes())
        version = shown.pop("data_version")
        message = from_dict(found, version, shown)
        # The version stands behind the message's own fields.
        assert json_text(to_dict(message) | {"data_version": version}).encode() == file.read_bytes()
        assert message.leader_epoch > 0
