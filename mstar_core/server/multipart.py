"""multipart/form-data (RFC 7578): the fields of a form, parsed while they come and kept in memory."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from mstar_core.errors import InvalidRequest, TooLarge

_MOST_FIELDS = 64
"""Far more than any request has files; a bound on what a hostile body makes us keep track of."""


async def read_form(content_type: str, pieces: AsyncIterable[bytes]) -> list[tuple[str, bytes]]:
    """The names and values of the fields, whether they are files or text, in their order; a name may come twice.

    The caller bounds the size of all `pieces` together. Raises `InvalidRequest` for a body that is no whole form, and
    for a field without a name.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise InvalidRequest("the Content-Type multipart/form-data must name its boundary")
    form = _Form()
    try:
        parser = MultipartParser(boundary, form.callbacks())
        async for piece in pieces:
            parser.write(piece)
    except FormParserError as error:
        raise InvalidRequest(f"the body is not valid multipart/form-data: {error}") from None
    if not form.ended:
        raise InvalidRequest("the multipart/form-data body is cut short: its last boundary is missing")
    return [(name, bytes(value)) for name, value in form.fields]


class _Form:
    """What the parser has found so far."""

    def __init__(self) -> None:
        self.fields: list[tuple[str, bytearray]] = []
        self.ended = False
        self._header = self._value = b""
        self._name: str | None = None

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._name = None
        if len(self.fields) >= _MOST_FIELDS:
            raise TooLarge(f"the form has more than the {_MOST_FIELDS} fields that this server takes")

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            kind, options = parse_options_header(self._value)
            name = options.get(b"name") if kind == b"form-data" else None
            self._name = None if name is None else name.decode("utf-8", "replace")
        self._header = self._value = b""

    def _headers_finished(self) -> None:
        if not self._name:
            raise InvalidRequest('each field of a form needs a "Content-Disposition: form-data" with a name')
        self.fields.append((self._name, bytearray()))

    def _data(self, data: bytes, start: int, end: int) -> None:
        self.fields[-1][1].extend(data[start:end])

    def _end(self) -> None:
        self.ended = True
