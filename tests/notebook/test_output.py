"""What ranks print is shown at once, in pieces of any size, or in whole lines with a prefix."""

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpudist.notebook.ranks import Output

texts = st.text(alphabet="aé\r\n", max_size=30)


def shown(pieces: list[bytes], prefix: str | None, whole: bool) -> str:
    with pytest.MonkeyPatch.context() as patch:
        screen = io.StringIO(newline="")
        patch.setattr(sys, "stdout", screen)
        output = Output("stdout", prefix, whole)
        for piece in [*pieces, b""]:
            output.write(piece)
        return screen.getvalue()


@given(text=texts, size=st.integers(1, 5))
def test_nothing_is_lost_or_changed(text: str, size: int) -> None:
    data = text.encode()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert shown(pieces, None, False) == text
    assert shown(pieces, "> ", True).replace("> ", "").removesuffix("\n") == text.removesuffix("\n")


def test_a_progress_bar_is_redrawn() -> None:
    bar = [b"\r 10%", b"\r 20%", b"\r100%\n"]
    assert shown(bar, None, False) == "\r 10%\r 20%\r100%\n"
    assert shown(bar, "[1] ", True) == "\r[1]  10%\r[1]  20%\r[1] 100%\n"
