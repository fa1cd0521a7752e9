"""What is wrong with a file that a client sent. Faces make errors of a field, or of a path, of them."""

from __future__ import annotations


class UnreadableMedia(ValueError):
    """The bytes are not what was wanted, or damaged; the message says what they are. A client's mistake: 400."""


class MediaTooLarge(ValueError):
    """A picture or clip exceeds a limit; the message has the number and the limit. A client's mistake: 413."""
