"""What a rank prints, on its way into the cell, as it comes."""

from __future__ import annotations

import codecs
import os
import re
import sys
from contextlib import suppress
from typing import IO, Literal

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)")


class Relay:
    """Passes one stream of a rank on to the same one of this process, whatever that is just now.

    Args:
        stream: the end of a pipe.
        to: where it goes to.
        prefix: what each line begins with; None passes everything on as it is.
        whole: whether to wait for the end of a line, so that ranks' lines do not mix.
    """

    def __init__(self, stream: IO[bytes], to: Literal["stdout", "stderr"], prefix: str | None, whole: bool) -> None:
        self._stream = stream
        self._to = to
        self._prefix = prefix or ""
        self._whole = whole
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        os.set_blocking(stream.fileno(), False)

    def fileno(self) -> int:
        return self._stream.fileno()

    def read(self) -> bool:
        """Pass on what there is; False at the end of the stream."""
        try:
            data = os.read(self.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        text = self._rest + self._decoder.decode(data, final=not data)
        if self._whole:
            # A progress bar's line ends with the carriage return that begins the next one.
            lines = _LINE.findall(text)
            self._rest = text[sum(map(len, lines)) :]
            if not data and self._rest:
                lines.append(f"{self._rest}\n")
            text = "".join(f"{self._prefix}{line}" if line.strip() else line for line in lines)
        self._show(text)
        return bool(data)

    def close(self) -> None:
        self._stream.close()

    def _show(self, text: str) -> None:
        stream = getattr(sys, self._to)  # a cell may have put another one there
        if text and stream is not None:
            with suppress(OSError, ValueError):  # nobody reads it
                stream.write(text)
                stream.flush()
