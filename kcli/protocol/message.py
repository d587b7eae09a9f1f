"""Messages as Python objects: one class with slots for each struct, for all versions.

A field that the version does not have has its default. `unknown_tagged_fields` has the tagged fields that are not declared,
as (tag, bytes) pairs in order, so that they are written again. A message, not its inner structs, also has `schema_version`:
the version in which it was read or is to be written.

The default of a field that is a struct is one object that all messages share: creating three such objects for each partition
of a response would cost more than the rest. The shared object cannot be changed; assign a new one to the field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from kcli.protocol.schema import Field, Struct

RawTaggedField = tuple[int, bytes]


class Message:
    """The base of all generated classes; `STRUCT` is the declaration of the fields.

    Fields are attributes in snake case. Messages are equal if their fields and unknown tagged fields are equal.
    """

    __slots__ = ("unknown_tagged_fields",)

    STRUCT: ClassVar[Struct]
    unknown_tagged_fields: tuple[RawTaggedField, ...]

    if TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message) or other.STRUCT is not self.STRUCT:
            return NotImplemented
        return self.unknown_tagged_fields == other.unknown_tagged_fields and all(
            getattr(self, field.attribute) == getattr(other, field.attribute) for field in self.STRUCT.fields
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.attribute}={getattr(self, field.attribute)!r}" for field in self.STRUCT.fields)
        return f"{self.STRUCT.name}({fields})"


_MISSING = object()


def has_shared_default(struct: Struct) -> bool:
    """Return True if the default of a struct can be shared: it contains no arrays."""
    return not any(
        field.type.is_array or (isinstance(field.default, Struct) and not has_shared_default(field.default))
        for field in struct.fields
    )


def default_source(field: Field) -> str:
    """Return the expression, in generated code, for the default of a field."""
    if isinstance(field.default, Struct):
        return f"DEFAULT_{field.default.name}" if has_shared_default(field.default) else f"{field.default.name}()"
    if field.type.name == "uuid" and field.default is not None and not field.type.is_array:
        return "ZERO_UUID"
    return repr(field.default)


def _init_source(struct: Struct, is_root: bool) -> str:
    parameters, lines = [], []
    for field in struct.fields:
        default, name = default_source(field), field.attribute
        is_fresh = default.endswith(("[]", "()"))
        parameters.append(f"{name}={'_MISSING' if is_fresh else default}")
        lines.append(f"    self.{name} = {f'{default} if {name} is _MISSING else {name}' if is_fresh else name}")
    if is_root:
        parameters.append("schema_version=_NEWEST")
        lines.append("    self.schema_version = schema_version")
    star = "*, " if parameters else ""
    return "\n".join(
        [
            f"def __init__(self, {star}{', '.join([*parameters, 'unknown_tagged_fields=()'])}):",
            *lines,
            "    self.unknown_tagged_fields = unknown_tagged_fields",
        ]
    )


def build_class(struct: Struct, classes: dict[str, Any], newest_version: int, is_root: bool) -> type[Message]:
    """Create the class of `struct`; `classes` must contain, by name, the classes of the structs in its defaults."""
    slots = [field.attribute for field in struct.fields] + (["schema_version"] if is_root else [])
    scope: dict[str, Any] = {"_MISSING": _MISSING, "_NEWEST": newest_version}
    exec(_init_source(struct, is_root), classes | scope, scope)
    body = {"__slots__": slots, "STRUCT": struct, "__init__": scope["__init__"], "__module__": __name__}
    return type(struct.name, (Message,), body)


def _refuse_change(message: Message, name: str, _value: object) -> None:
    what = message.STRUCT.name
    raise AttributeError(f"this {what} is the default that all messages share: assign a new {what} to change its {name}")


def build_shared_default(made: type[Message]) -> Message:
    """Create the shared default of a class: equal to a new object of it, but it cannot be changed."""
    frozen: type[Message] = type(made.__name__, (made,), {"__slots__": (), "__setattr__": _refuse_change})
    default: Message = object.__new__(frozen)
    example = made()
    for name in (*(field.attribute for field in made.STRUCT.fields), "unknown_tagged_fields"):
        object.__setattr__(default, name, getattr(example, name))
    return default
