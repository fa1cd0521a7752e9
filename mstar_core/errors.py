"""Every error that M* raises on purpose.

    MStarError
    ├── SpecError               what a plugin declared does not hold together (all problems at once)
    ├── PluginError             a plugin cannot be found, imported or used
    │   └── UnknownModel        no plugin registers a model of that name
    ├── PlacementError          the deployer's YAML is wrong (key and line)
    ├── CheckpointError         a checkpoint directory lacks or garbles something
    ├── ConfigurationError      an environment variable, flag or option has an impossible value
    └── RequestError            one request ended without its result; has a status, a code and maybe a field
        ├── InvalidRequest      400: the client's input is wrong; names the field
        ├── NotFound            404: no such model, route or request
        ├── Conflict            409: a request of that id is already here
        ├── TooLarge            413: the body or a medium exceeds the server's limit
        ├── Overloaded          429: queues are full; says when to try again
        ├── Cancelled           499: the client left or asked to stop
        ├── NodeFailed          500: a node raised; names the node
        ├── Unavailable         503: a worker died, or the server is draining
        └── DeadlineExceeded    504: the request ran longer than it may

Errors are classified by type, never by message text. A `RequestError` crosses process boundaries as
`(code, message, param, retry_after)` and is rebuilt by `request_error`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class MStarError(Exception):
    """Root of all deliberate errors of M*."""


class SpecError(MStarError):
    """What a plugin declared does not hold together; `problems` lists every finding, one line each."""

    def __init__(self, subject: str, problems: Sequence[str]) -> None:
        self.subject = subject
        self.problems = tuple(problems)
        super().__init__(f"{subject}: " + "; ".join(problems) if len(problems) == 1 else _listed(subject, problems))


class PluginError(MStarError):
    """A plugin cannot be found, imported or used; the message says why and what mends it."""


class UnknownModel(PluginError):
    """No healthy or known plugin registers the model that was asked for."""


class PlacementError(MStarError):
    """The placement file is wrong; the message gives file, line and key."""


class CheckpointError(MStarError):
    """A checkpoint is missing, incomplete or of another layout; the message lists what was found."""


class ConfigurationError(MStarError):
    """An environment variable, flag or option has a value that cannot be."""


class RequestError(MStarError):
    """One request ended without its result. `status` is the HTTP status, `code` the stable machine-readable name."""

    status = 500
    code = "internal_error"
    kind = "server_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after


class InvalidRequest(RequestError):
    """The client's input is wrong; `param` names the field."""

    status, code, kind = 400, "invalid_request", "invalid_request_error"


class NotFound(RequestError):
    """No such model, route or request."""

    status, code, kind = 404, "not_found", "invalid_request_error"


class Conflict(RequestError):
    """A request of that id is already being served."""

    status, code, kind = 409, "conflict", "invalid_request_error"


class TooLarge(RequestError):
    """The body, or a medium in it, exceeds the server's limit."""

    status, code, kind = 413, "too_large", "invalid_request_error"


class Overloaded(RequestError):
    """Queues are full; `retry_after` says in how many seconds another try makes sense."""

    status, code, kind = 429, "overloaded", "rate_limit_error"


class Cancelled(RequestError):
    """The client left or asked to stop; nobody waits for the answer."""

    status, code, kind = 499, "cancelled", "cancelled"


class NodeFailed(RequestError):
    """A node raised while it ran this request; the message names walk and node."""

    status, code, kind = 500, "node_failed", "server_error"


class Unavailable(RequestError):
    """A worker died, or the server is starting or draining."""

    status, code, kind = 503, "unavailable", "server_error"


class DeadlineExceeded(RequestError):
    """The request ran longer than its deadline."""

    status, code, kind = 504, "deadline_exceeded", "server_error"


_BY_CODE: dict[str, type[RequestError]] = {
    kind.code: kind
    for kind in (
        RequestError,
        InvalidRequest,
        NotFound,
        Conflict,
        TooLarge,
        Overloaded,
        Cancelled,
        NodeFailed,
        Unavailable,
        DeadlineExceeded,
    )
}


def request_error(
    code: str, message: str, *, param: str | None = None, retry_after: float | None = None
) -> RequestError:
    """Rebuild the error of a `code` that came over a wire."""
    return _BY_CODE[code](message, param=param, retry_after=retry_after)


def nearest(name: str, names: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the name closest to `name`, or an empty string when none is close."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _listed(subject: str, problems: Sequence[str]) -> str:
    lines = "\n".join(f"  - {problem}" for problem in problems)
    return f"{subject}: {len(problems)} problems\n{lines}"
