"""Ways to spoil bytes, for the tests that no input makes a decoder do more than raise its own error."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def damaged(draw: st.DrawFn, sound: st.SearchStrategy[bytes]) -> bytes:
    """Bytes of `sound`, cut short, with a bit flipped, a length that lies, something put in or taken out."""
    data = bytearray(draw(sound))
    for _ in range(draw(st.integers(1, 3))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["cut", "flip", "lie", "insert", "remove"])):
            case "cut":
                del data[at:]
            case "flip":
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "lie":
                number = draw(st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 2**24, 255, len(data), len(data) + 1]))
                data[at : at + 4] = number.to_bytes(4, draw(st.sampled_from(["big", "little"])), signed=True)
            case "insert":
                data[at:at] = draw(st.binary(max_size=8))
            case "remove":
                del data[at : at + draw(st.integers(1, 8))]
    return bytes(data)
