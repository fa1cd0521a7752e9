"""The files that came with a request, by the names of their form fields."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mstar_core.errors import InvalidRequest, nearest


class Uploads:
    """Files that parts of the request name; each must be named at least once."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._unnamed = dict.fromkeys(files)

    @property
    def unnamed(self) -> Collection[str]:
        """The files that no part has named so far."""
        return self._unnamed.keys()

    def take(self, name: str, at: str) -> bytes:
        """The file of that name, which the field `at` names; raises `InvalidRequest` with those there are."""
        if name not in self._files:
            there = f"there are: {', '.join(self._files)}" if self._files else "files come as multipart/form-data"
            problem = f"{at!r}: the request has no file {name!r}{nearest(name, self._files)}; {there}"
            raise InvalidRequest(problem, param=at)
        self._unnamed.pop(name, None)
        return self._files[name]

    def require_all_named(self) -> None:
        """Raise `InvalidRequest` for a file that no part names."""
        for name in self._unnamed:
            raise InvalidRequest(f"nothing in the request names the file {name!r}", param=name)
