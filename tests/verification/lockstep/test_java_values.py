"""Hash maps and random ids are Java's: the expected values come from a JVM's documentation."""

from verification.lockstep.hash_map import JavaHashMap
from verification.lockstep.java_random import JavaRandom

from kafkagroup.testing.embedded.java_hash import java_hash


def test_hash_codes_are_those_of_java():
    assert java_hash("") == 0
    assert java_hash("hello") == 99162322
    assert java_hash("polygenelubricants") == 1 << 31  # Integer.MIN_VALUE


def filled(*keys):
    made = JavaHashMap()
    for key in keys:
        made[key] = key.upper()
    return made


def test_a_map_iterates_by_bucket_and_then_by_insertion():
    assert list(filled("b", "a", "q")) == ["a", "q", "b"]  # 97, 113 and 98: "a", "q" share one
    assert list(filled("q", "a").values()) == ["Q", "A"]
    assert list(filled("Aa", "BB").items()) == [("Aa", "AA"), ("BB", "BB")]  # of one hash code


def test_a_map_doubles_when_it_is_three_quarters_full():
    letters = "abcdefghijklmnopq"
    assert list(filled("q", "a")) == ["q", "a"]  # both in bucket 1 of 16
    assert list(filled(*reversed(letters))) == list(letters)


def test_random_bytes_are_those_of_java():
    # new Random(0).nextInt() and the next are -1155484576 and -723955400.
    expected = b"".join(n.to_bytes(4, "little", signed=True) for n in (-1155484576, -723955400))
    assert JavaRandom(0).next_bytes(8) == expected
    assert JavaRandom(0).uuid().version == 4
