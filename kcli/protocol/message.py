"""Messages as Python objects: one class with slots for each struct, for all of its versions.

A field that its version lacks has its default. `unknown_tagged_fields` keeps, as (tag, bytes) pairs in their order, the
tagged fields that no declaration names, so that they are written again. A whole message, not its inner structs, also has
`schema_version`: the version that it was read in, or is to be written in.

A field that holds a struct and is at its default has the one default of that struct, which all messages share: making three
of them for each partition of a response would cost more than the rest of it. It refuses to be changed; assign another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from kcli.protocol.schema import Field, Struct

RawTaggedField = tuple[int, bytes]


class Message:
    """The base of all generated classes; `STRUCT` is the declaration of its fields.

    Fields are attributes in snake case. Two messages are equal when their fields and unknown tagged fields are.
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
    """True where nothing inside the struct's default could be changed: it has no arrays."""
    return not any(
        field.type.is_array or (isinstance(field.default, Struct) and not has_shared_default(field.default))
        for field in struct.fields
    )


def default_source(field: Field) -> str:
    """The expression, in generated code, for a field's default."""
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
    """The class of `struct`; `classes` must hold, by name, those of the structs that its defaults make."""
    slots = [field.attribute for field in struct.fields] + (["schema_version"] if is_root else [])
    scope: dict[str, Any] = {"_MISSING": _MISSING, "_NEWEST": newest_version}
    exec(_init_source(struct, is_root), classes | scope, scope)
    body = {"__slots__": slots, "STRUCT": struct, "__init__": scope["__init__"], "__module__": __name__}
    return type(struct.name, (Message,), body)


def _refuse_change(message: Message, name: str, _value: object) -> None:
    what = message.STRUCT.name
    raise AttributeError(f"this {what} is the default that all messages share: assign a new {what} to change its {name}")


def build_shared_default(made: type[Message]) -> Message:
    """The one default of a struct's class: equal to a new object of it, but refuses to be changed."""
    frozen: type[Message] = type(made.__name__, (made,), {"__slots__": (), "__setattr__": _refuse_change})
    default: Message = object.__new__(frozen)
    example = made()
    for name in (*(field.attribute for field in made.STRUCT.fields), "unknown_tagged_fields"):
        object.__setattr__(default, name, getattr(example, name))
    return default
