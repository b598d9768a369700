"""Frames of the store's protocol."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpudist.store import protocol
from cpudist.store.protocol import Code, Garbage


def _taken(buffer: bytearray) -> list[tuple[Code, list[bytes]]]:
    return list(protocol.frames(buffer))


@given(fields=st.lists(st.binary(max_size=50), max_size=6), code=st.sampled_from(Code), cut=st.integers(1, 400))
def test_frames_survive_the_wire_in_any_pieces(fields: list[bytes], code: Code, cut: int) -> None:
    sent = protocol.pack(code, *fields) + protocol.pack(Code.COUNT)
    buffer, got = bytearray(), []
    for at in range(0, len(sent), cut):
        buffer += sent[at : at + cut]
        got += _taken(buffer)
    assert got == [(code, fields), (Code.COUNT, [])]
    assert not buffer


@given(noise=st.binary(max_size=200))
def test_noise_is_refused_or_packs_to_the_same_bytes(noise: bytes) -> None:
    buffer = bytearray(noise)
    try:
        taken = b"".join(protocol.pack(code, *fields) for code, fields in protocol.frames(buffer))
    except Garbage:
        return
    assert taken + buffer == noise


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\0\0\0\0",
        b"\x11\0\0\0\0",
        b"\x02\x40\0\0\x01",
        b"\x02\0\0\0\3\0\0\0",
        b"\x02\0\0\0\5\0\0\0\2x",
    ],
    ids=["code 0", "code 17", "more than 1 GiB", "half a length", "a field longer than its frame"],
)
def test_other_bytes_than_frames_are_refused_at_once(frame: bytes) -> None:
    with pytest.raises(Garbage):
        _taken(bytearray(frame))
    assert _taken(bytearray(b"\x02\x40\0\0\0")) == [], "a frame of 1 GiB is awaited"


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_numbers_keep_their_value(value: int) -> None:
    assert protocol.to_number(protocol.number(value)) == value


def test_a_number_of_another_length_is_refused() -> None:
    with pytest.raises(Garbage):
        protocol.to_number(b"\0" * 7)


def test_a_proof_depends_on_the_token_the_side_and_both_challenges_in_order() -> None:
    given = (b"token", b"client", b"one", b"other")
    others = [(b"guess", *given[1:]), (b"token", b"server", *given[2:]), (*given[:2], b"other", b"one")]
    assert len({protocol.proof(*arguments) for arguments in [given, *others]}) == 4
    assert len(protocol.proof(*given)) == protocol.PROOF_BYTES
