"""Protects the orders of Java's collections; tests/oracle shows that Kafka's results have them."""

from __future__ import annotations

from kcli.format.java_text import HashSet, hash_map_order, long_map_order, text_order


def test_texts_of_one_bucket_are_in_the_order_of_insertion() -> None:
    """Aa and BB have the same hash."""
    assert hash_map_order(["b", "Aa", "BB", "a"]) == ["Aa", "BB", "a", "b"]
    assert hash_map_order(["b", "BB", "Aa", "a"]) == ["BB", "Aa", "a", "b"]


def test_compute_if_absent_puts_a_text_before_those_of_its_bucket() -> None:
    assert hash_map_order(["Aa", "BB", "a"], is_computed=True) == ["BB", "Aa", "a"]


def test_the_table_is_doubled_above_three_quarters() -> None:
    """The hash of a letter is its code: a (97) and q (113) share one of 16 buckets, but not of 32."""
    letters = list("qabcdefghijk")
    assert hash_map_order(letters) == ["q", *"abcdefghijk"]
    assert hash_map_order([*letters, "l"]) == [*"abcdefghijkl", "q"]
    assert hash_map_order([*letters, "l"], is_computed=True) == ["a", "q", *"bcdefghijkl"]


def test_a_hash_set_returns_its_first_item() -> None:
    """16 and 0 share a bucket until there are more than 12 items; the table of a set does not shrink."""
    numbers = HashSet[int](lambda number: number)
    for number in (5, 16, 0):
        numbers.add(number)
    assert numbers.first() == 16
    for number in range(1, 12):
        numbers.add(number)
    assert numbers.first() == 0
    numbers.remove(0)
    for number in range(1, 12):
        numbers.remove(number)
    assert numbers.first() == 16
    assert len(numbers) == 1
    numbers.add(15)
    assert numbers.first() == 15


def test_a_hash_set_takes_negative_hashes_as_java_does() -> None:
    numbers = HashSet[int](lambda number: number)
    for number in (-1, 3):
        numbers.add(number)
    assert numbers.first() == -1


def test_texts_are_ordered_by_utf16_code_units() -> None:
    texts = ["\uff5e", "a", "\U0001f600", "b", "", "ab"]
    assert sorted(texts, key=text_order) == ["", "a", "ab", "b", "\U0001f600", "\uff5e"]


def test_the_order_of_numbers() -> None:
    """16 buckets at first, twice as many when 3/4 are taken; the high half of a key counts, negative keys too."""
    assert long_map_order([1008, 1001, 1004, 1006]) == [1008, 1001, 1004, 1006]
    assert long_map_order([17, 1, 16]) == [16, 17, 1]
    assert long_map_order([1001, 1004], most=13) == [1001, 1004]
    assert long_map_order(range(100, 0, -1)) == list(range(1, 101))
    assert long_map_order([1 << 32, 0]) == [0, 1 << 32]
    assert long_map_order([-1, 3]) == [-1, 3]
