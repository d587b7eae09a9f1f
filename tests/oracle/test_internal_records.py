"""Protects the reading of messages against Kafka itself: its classes and its dump tool get what we encode at random, sound
and damaged, in every version of every declaration, and must say of it what we say."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from kcli.format.java_text import json_text
from kcli.format.primitives import FormatError, write_unsigned_varint
from kcli.protocol.compiler import MessageType
from kcli.protocol.control_records import control_suffix
from kcli.protocol.internal_records import Decoder, decoder_for_topic
from kcli.protocol.json_values import to_dict
from kcli.protocol.message_types import message_type, record_types
from tests.oracle.peer import Peer
from tests.protocol.messages import ALL_VERSIONS, messages

pytestmark = pytest.mark.oracle

PACKAGES = {
    "metadata": "org.apache.kafka.common.metadata",
    "remote": "org.apache.kafka.server.log.remote.metadata.storage.generated",
    "group": "org.apache.kafka.coordinator.group.generated",
    "transaction": "org.apache.kafka.coordinator.transaction.generated",
    "share": "org.apache.kafka.coordinator.share.generated",
    "control": "org.apache.kafka.common.message",
}
COORDINATORS = {
    "offsets": ("__consumer_offsets", "group_records"),
    "transaction": ("__transaction_state", "transaction_records"),
    "share": ("__share_group_state", "share_records"),
}
FRAMED = {
    "metadata": ("__cluster_metadata", "metadata_records"),
    "remote": ("__remote_log_metadata", "remote_log_records"),
}
EXAMPLES = 8
# New in Kafka 4.4, or with fields that 4.3.1 does not know.
SINCE_KAFKA_4_4 = ("UnregisterControllerRecord", "StreamsGroupMetadataValue")
# Kafka has no generated class of these; test_client_assignors judges their bytes.
WITHOUT_A_CLASS = ("StickyAssignorUserData", "CooperativeStickyAssignorUserData")


def draws(strategy: st.SearchStrategy[bytes], count: int = EXAMPLES) -> list[bytes]:
    """Examples of a strategy, the same at each run."""
    found: list[bytes] = []

    @seed(1)
    @settings(
        max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None
    )
    @given(strategy)
    def collect(value: bytes) -> None:
        found.append(value)

    collect()
    return found


def encodings(found: MessageType, version: int, count: int = EXAMPLES) -> list[bytes]:
    return draws(messages(found, version).map(lambda message: found.encode(message)), count)


def damaged(data: bytes, dice: random.Random) -> bytes:
    """The bytes cut, lengthened or with some of them changed."""
    choice = dice.randrange(5)
    if choice == 0:
        return data[: dice.randrange(len(data) + 1)]
    if choice == 1:
        return data + bytes(dice.randrange(1, 5))
    out = bytearray(data or b"\0")
    for _ in range(choice - 1):
        out[dice.randrange(len(out))] = dice.choice([0, 1, 2, 0x7F, 0x80, 0xFF, dice.randrange(256)])
    return bytes(out)


def ask(peer: Peer, lines: Iterable[str]) -> list[str]:
    ran = peer.run_java("DescribeRecords", stdin="".join(line + "\n" for line in lines).encode())
    assert ran.exit_code == 0, ran.stderr[-2000:]
    return ran.stdout.decode().split("\n")[:-1]


def word(data: bytes | None) -> str:
    return "-" if data is None else data.hex()


def text_of(answer: str) -> str | None:
    return None if answer == "-" else bytes.fromhex(answer).decode()


def java_class(found: MessageType) -> str:
    if found.name == "QuorumStateData":
        return f"org.apache.kafka.raft.generated.{found.name}"
    kind = next(file for file in PACKAGES if found in package_types(file))
    return f"{PACKAGES[kind]}.{found.name}"


def package_types(kind: str) -> list[MessageType]:
    from kcli.protocol.message_types import message_types

    return list(message_types({"remote": "remote_log"}.get(kind, kind) + "_records").values())


@pytest.mark.ci
def test_every_message_in_every_version_is_to_kafka_what_it_is_to_us(kafka_peer: Peer) -> None:
    cases = [
        (found, version, data)
        for found, version in ALL_VERSIONS
        if found.name not in SINCE_KAFKA_4_4 + WITHOUT_A_CLASS
        for data in encodings(found, version)
    ]
    answers = ask(kafka_peer, [f"message {java_class(found)} {version} {data.hex()}" for found, version, data in cases])
    for (found, version, data), answer in zip(cases, answers, strict=True):
        shown, _, written = answer.partition(" ")
        message, position = found.decode(data, version)
        assert position == len(data)
        assert (found, version, text_of(shown)) == (found, version, json_text(to_dict(message)))
        assert bytes.fromhex(written) == data


def coordinator_cases(dice: random.Random) -> list[tuple[str, bytes | None, bytes | None]]:
    """(decoder, key, value) of every record type and version, sound and damaged."""
    cases: list[tuple[str, bytes | None, bytes | None]] = []
    for decoder, (_, file) in COORDINATORS.items():
        for record_type, key_type in record_types(file, "coordinator-key").items():
            value_type = record_types(file, "coordinator-value")[record_type]
            if value_type.name in SINCE_KAFKA_4_4:
                continue
            prefix = record_type.to_bytes(2, "big")
            keys = [prefix + data for data in encodings(key_type, 0)]
            cases.append((decoder, keys[0], None))
            for version in range(value_type.schema.versions.lowest, value_type.newest_version + 3):
                data = encodings(value_type, min(version, value_type.newest_version), 15)
                values = [version.to_bytes(2, "big") + value for value in data]
                cases += [(decoder, dice.choice(keys), value) for value in values]
                cases += [(decoder, dice.choice(keys), damaged(value, dice)) for value in values]
            cases += [(decoder, damaged(key, dice), last) for key in keys for last in (values[0], None)]
        cases += [(decoder, bytes.fromhex(key), b"") for key in ("", "00", "0063", "ffff", "0009", "0012")]
    return cases


def consumer_group_cases(dice: random.Random) -> list[tuple[str, bytes | None, bytes | None]]:
    """Classic groups of consumers whose members' bytes are subscriptions and assignments, sound and damaged."""
    group = message_type("group_records", "GroupMetadataValue")
    key = b"\0\2" + message_type("group_records", "GroupMetadataKey").encode(
        message_type("group_records", "GroupMetadataKey").new(group="g", schema_version=0)
    )
    parts: dict[str, list[bytes]] = {}
    for name in ("Subscription", "Assignment"):
        found = message_type("control_records", f"ConsumerProtocol{name}")
        parts[name] = [b"", b"\0"]
        for version in range(6):
            for data in encodings(found, min(version, found.newest_version), 15):
                parts[name] += [version.to_bytes(2, "big") + data, version.to_bytes(2, "big") + damaged(data, dice)]
    cases: list[tuple[str, bytes | None, bytes | None]] = []
    for subscription, assignment in zip(parts["Subscription"], parts["Assignment"]):
        member = group.classes["MemberMetadata"](member_id="m", subscription=subscription, assignment=assignment)
        value = group.new(protocol_type=dice.choice(["consumer", "consumer", "connect"]), members=[member])
        cases.append(("offsets", key, b"\0\4" + group.encode(value, 4)))
    return cases


def plausible(found: MessageType, version: int, data: bytes) -> bytes:
    """The message with values that Kafka's classes of tiered storage accept."""
    message, _ = found.decode(data, min(version, found.newest_version))
    for name in ("remote_log_segment_state", "remote_partition_delete_state"):
        if hasattr(message, name):
            setattr(message, name, abs(getattr(message, name)) % 3)
    if hasattr(message, "segment_leader_epochs"):
        message.start_offset = abs(message.start_offset) % 2**62
        message.end_offset = message.start_offset + abs(message.end_offset) % 1000
        message.segment_leader_epochs += [found.classes["SegmentLeaderEpochEntry"](leader_epoch=5, offset=7)]
    return found.encode(message)


def framed_cases(dice: random.Random) -> list[tuple[str, bytes | None, bytes | None]]:
    cases: list[tuple[str, bytes | None, bytes | None]] = []
    for decoder, (_, file) in FRAMED.items():
        for record_type, found in record_types(file, "metadata").items():
            if found.name in SINCE_KAFKA_4_4:
                continue
            for version in range(found.newest_version + 3):
                for data in encodings(found, min(version, found.newest_version), 15):
                    value = bytes([1, record_type, version]) + data
                    cases += [(decoder, None, value), (decoder, None, damaged(value, dice))]
                    cases.append((decoder, None, value[:3] + plausible(found, version, data)))
        strange = ["", "00", "01", "02", "0163", "01", "0180", "01ffffffff0f", "ffff0300", "80800400", "818003", "ffffffffff"]
        cases += [(decoder, b"key", bytes.fromhex(value)) for value in strange]
        # A type and a version that are negative int32s, of which Java makes small numbers.
        for number in (-1, -65534, 0x7FFF, 0x8000, -65536):
            varint = write_unsigned_varint(number & 0xFFFFFFFF)
            cases += [(decoder, None, b"\1" + varint + b"\0\0"), (decoder, None, b"\1\2" + varint + b"\0" * 30)]
        cases.append((decoder, b"key", None))
    return cases


def ours(decoder: Decoder, offset: int, key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    try:
        return decoder.describe(offset, key, value)
    except FormatError as error:
        return f"! {error.message}", None


def without_subnormals(text: str | None) -> str | None:
    """Java before 19 writes some subnormal doubles with a digit too many (JDK-4511638): 6.3E-322 as 6.32E-322."""
    return text and re.sub(r"\d\.\d+E-3(0[89]|[12]\d)\b", "<subnormal>", text)


@pytest.mark.ci
@pytest.mark.parametrize("cases", [coordinator_cases, consumer_group_cases, framed_cases])
def test_kafkas_dump_tool_prints_what_we_print(kafka_peer: Peer, cases: object) -> None:
    assert callable(cases)
    found = cases(random.Random(7))
    answers = ask(kafka_peer, [f"describe {name} 17 {word(key)} {word(value)}" for name, key, value in found])
    topics = {name: topic for name, (topic, _) in (COORDINATORS | FRAMED).items()}
    for (name, key, value), answer in zip(found, answers, strict=True):
        decoder = decoder_for_topic(topics[name])
        assert decoder is not None
        key_text, _, payload = answer.partition(" ")
        own_key, own_payload = ours(decoder, 17, key, value)
        assert (name, word(key), word(value), own_key, without_subnormals(own_payload)) == (
            name,
            word(key),
            word(value),
            text_of(key_text),
            without_subnormals(text_of(payload)),
        )


@pytest.mark.ci
def test_control_records_print_as_kafka_prints_them_or_are_refused_with_it(kafka_peer: Peer) -> None:
    dice = random.Random(7)
    cases: list[tuple[bytes | None, bytes | None]] = [(None, b""), (b"", b""), (b"\0\0\0", b""), (b"\0\0\0\1", None)]
    names = ["EndTxnMarker", "EndTxnMarker", "LeaderChangeMessage", "SnapshotHeaderRecord", "SnapshotFooterRecord"]
    for type_id, name in enumerate([*names, "KRaftVersionRecord", "VotersRecord"]):
        found = message_type("control_records", name)
        for data in encodings(found, 0, 20):
            prefix = b"\0\0" if type_id < 2 else b""
            for versioned in (type_id.to_bytes(4, "big"), (3 << 16 | type_id).to_bytes(4, "big") + b"x"):
                cases += [(versioned, prefix + data), (versioned, damaged(prefix + data, dice))]
                if type_id > 1:
                    # All of KRaft's messages begin with the version that they state.
                    cases.append((versioned, dice.choice([b"\0\0", b"\0\1", b"\0\2", b"\xff\xff"]) + data[2:]))
        cases += [(type_id.to_bytes(4, "big"), None), (b"\0", b""), (b"\xff\xff" + bytes([0, type_id]), prefix + data)]
    cases += [(b"\0\0\0\7", b"abc"), (b"\0\0\xff\xff", b""), (b"\0\0\0\1", b"\xff\xff\0\0\0\1"), (b"\0\0\0\1", b"\0\1\0\0\0\1")]
    answers = ask(kafka_peer, [f"control {word(key)} {word(value)}" for key, value in cases])
    for (key, value), answer in zip(cases, answers, strict=True):
        try:
            shown: str | None = control_suffix(key, value)
        except FormatError:
            shown = None
        # Where Kafka's tool dies of a record, ours must refuse it.
        expected = None if answer.startswith("! ") else text_of(answer)
        assert (word(key), word(value), shown) == (word(key), word(value), expected)
