"""Output passes as it comes, in pieces of any size, or in whole lines with a prefix."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpudist.notebook.relay import Relay

texts = st.text(alphabet="aé\r\n", max_size=30)


def relayed(pieces: list[bytes], prefix: str | None, whole: bool, capsys: pytest.CaptureFixture[str]) -> str:
    reader, writer = os.pipe()
    with open(reader, "rb") as stream, open(writer, "wb", buffering=0) as sink:
        relay = Relay(stream, "stdout", prefix, whole)
        for piece in pieces:
            sink.write(piece)
            assert relay.read()
        sink.close()
        assert not relay.read()
    return capsys.readouterr().out


@given(text=texts, size=st.integers(1, 5))
def test_nothing_is_lost_or_changed(text: str, size: int) -> None:
    data = text.encode()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    with pytest.MonkeyPatch.context() as patch:
        shown: list[str] = []
        patch.setattr(Relay, "_show", lambda _self, some: shown.append(some))
        _feed(pieces, None, False)
        assert "".join(shown) == text
        shown.clear()
        _feed(pieces, "> ", True)
        assert "".join(shown).replace("> ", "").removesuffix("\n") == text.removesuffix("\n")


def _feed(pieces: list[bytes], prefix: str | None, whole: bool) -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as stream:
        relay = Relay(stream, "stdout", prefix, whole)
        with open(writer, "wb", buffering=0) as sink:
            for piece in pieces:
                sink.write(piece)
                relay.read()
        while relay.read():
            pass


def test_a_progress_bar_is_redrawn(capsys: pytest.CaptureFixture[str]) -> None:
    bar = [b"\r 10%", b"\r 20%", b"\r100%\n"]
    assert relayed(bar, None, False, capsys) == "\r 10%\r 20%\r100%\n"
    assert relayed(bar, "[1] ", True, capsys) == "\r[1]  10%\r[1]  20%\r[1] 100%\n"


def test_half_a_line_at_the_end_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert relayed([b"one\ntw", b"o"], "[0] ", True, capsys) == "[0] one\n[0] two\n"
