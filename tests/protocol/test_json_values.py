"""Protects the JSON of messages, which must be Kafka's byte for byte (the oracle tests compare every message with Kafka's)."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format.java_text import json_text
from kcli.format.kafka_uuid import Uuid
from kcli.protocol.compiler import MessageType
from kcli.protocol.json_values import to_dict
from kcli.protocol.message_types import message_type
from kcli.protocol.schema import parse_schemas
from tests.protocol.json_reader import from_dict
from tests.protocol.messages import ALL_VERSIONS, messages

QUOTA = message_type("metadata_records", "ClientQuotaRecord")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values)
def test_printed_json_reads_back(value: object) -> None:
    assert json.loads(json_text(value), strict=False) == value


def test_json_is_printed_as_jackson_does() -> None:
    value = {"a": [1, -2, True, False, None], "b": 1.0, "c": 1e10, "d": 'é"\n\x01/', "e": {}, "f": float("nan")}
    assert json_text(value) == ('{"a":[1,-2,true,false,null],"b":1.0,"c":1.0E10,"d":"é\\"\\n\\u0001/","e":{},"f":"NaN"}')


def test_types_are_written_as_kafka_writes_them() -> None:
    found = MessageType(
        parse_schemas(
            "data Sample versions=0-1 flexible=1+\n  KRaftFlag bool\n  Raw bytes\n  Id uuid\n  Ratio float64\n"
            "  Rows records null=0+\n  Gone string null=0+ default=null\n  New int32 1+\n  Tagged int32 1+ tag=0@1+ default=5\n"
        )[0]
    )
    message = found.new(raw=b"\xfb\xff\0", id=Uuid.parse("kcliKcliKcliKcliKcliKg"), ratio=2, rows=b"abc")
    assert to_dict(message, 0) == {
        "kRaftFlag": False,
        "raw": "+/8A",
        "id": "kcliKcliKcliKcliKcliKg",
        "ratio": 2.0,
        "rows": "",
        "gone": None,
    }
    assert list(to_dict(message)) == ["kRaftFlag", "raw", "id", "ratio", "rows", "gone", "new"]
    message.tagged = 6
    assert to_dict(message)["tagged"] == 6


def test_a_tagged_struct_whose_declared_default_is_an_empty_one_shows_its_null() -> None:
    found = message_type("group_records", "ConsumerGroupMemberMetadataValue")
    assert "classicMemberMetadata" not in to_dict(found.new())
    assert to_dict(found.new(classic_member_metadata=None))["classicMemberMetadata"] is None


@settings(max_examples=200)
@given(st.sampled_from(ALL_VERSIONS).flatmap(lambda pair: st.tuples(st.just(pair[0]), messages(*pair))))
def test_json_reads_back_as_the_message(given: tuple[MessageType, object]) -> None:
    found, message = given
    assert found.schema is not None
    shown = json.loads(json_text(to_dict(message)))  # type: ignore[arg-type]
    read = from_dict(found, message.schema_version, shown)  # type: ignore[attr-defined]
    assert found.json(message) == json_text(to_dict(message))  # type: ignore[arg-type]
    # JSON leaves unknown tagged fields out.
    assert json_text(to_dict(read)) == json_text(to_dict(message))  # type: ignore[arg-type]


def test_infinite_quotas_read_back() -> None:
    shown = to_dict(QUOTA.new(key="k", value=float("-inf")))
    assert '"value":"-Infinity"' in json_text(shown)
    assert from_dict(QUOTA, 0, json.loads(json_text(shown))).value == float("-inf")
