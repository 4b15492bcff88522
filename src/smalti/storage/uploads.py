"""A file to be written somewhere that takes whole files only: collected here, handed over when it is closed."""

import io
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

MEMORY_BYTES = 8 << 20
"""What is kept in memory; the rest goes to a temporary file."""


class Upload(io.BufferedIOBase):
    """Handed over as bytes or as the path of a local file, once, by `close` or `commit`.

    Nothing is handed over when the `with` block ends by an exception, nor when the file is dropped without `close`.
    """

    def __init__(self, send: Callable[[bytes | Path], None], path: str, *, autocommit: bool = True) -> None:
        super().__init__()
        self.path = path
        self.mode = "wb"
        self._send = send
        self._autocommit = autocommit
        self._file: IO[bytes] = io.BytesIO()
        self._is_over = False

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any) -> int:
        """Take the bytes."""
        self._check_open()
        view = memoryview(data).cast("B")
        if isinstance(self._file, io.BytesIO) and self._file.tell() + len(view) > MEMORY_BYTES:
            begun = self._file
            self._file = tempfile.NamedTemporaryFile(prefix="smalti-upload-")  # noqa: SIM115 -- closed by `_end`
            self._file.write(begun.getbuffer())
        self._file.write(view)
        return len(view)

    def tell(self) -> int:
        """Bytes written."""
        self._check_open()
        return self._file.tell()

    def flush(self) -> None:
        """Nothing yet: a part of a file must not be seen."""

    def close(self) -> None:
        """Hand over what was written; a second call does nothing."""
        if self.closed:
            return
        try:
            if self._autocommit:
                self.commit()
        finally:
            super().close()
            if self._autocommit:
                self._end()

    def commit(self) -> None:
        """Hand over; for fsspec's transactions, which close first."""
        if self._is_over:
            return
        try:
            if isinstance(self._file, io.BytesIO):
                self._send(self._file.getvalue())
            else:
                self._file.flush()
                self._send(Path(self._file.name))
        finally:
            self._end()

    def discard(self) -> None:
        """Forget what was written."""
        self._end()
        super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hand over, or forget everything when the block failed."""
        if kind is None or not self._autocommit:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        """Forget what nobody closed."""
        if not self.closed and not self._is_over:
            self.discard()
            warnings.warn(f"{self.path} was not closed and is not written", ResourceWarning, source=self, stacklevel=2)

    def _end(self) -> None:
        self._is_over = True
        self._file.close()

    def _check_open(self) -> None:
        if self.closed or self._is_over:
            raise ValueError(f"{self.path} is closed")
