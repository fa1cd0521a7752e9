"""Who can reach whom, and with which keys: host identities and the key pair of a deployment. Torch-free."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import socket
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from mstar_core.errors import ConfigurationError

_NAMESPACES = ("pid", "net", "mnt", "user")
"""Processes that share these see each other in /proc, and each other's ipc sockets."""


@functools.cache
def host_identity() -> str:
    """What is equal exactly for processes that can share memory by /proc/PID/fd and reach each other's ipc sockets.

    On Linux made from the boot id, the namespaces and the user, so that two containers of one machine are two hosts;
    elsewhere from host name, network hardware and user. 16 hexadecimal digits.
    """
    try:
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
        parts += [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES]
    except OSError:
        parts = [socket.gethostname(), hex(uuid.getnode())]
    return hashlib.sha256("|".join([*parts, str(os.geteuid())]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The CURVE key pair (Z85 text) that all parties of a deployment share: whoever has it is one of them."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def generate(cls) -> Keys:
        """A new pair."""
        public, secret = zmq.curve_keypair()
        return cls(public=public.decode(), secret=secret.decode())

    def save(self, path: Path) -> None:
        """Write the pair to a file that only its owner may read."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            os.fchmod(descriptor, 0o600)  # a file that was there before keeps its mode
            json.dump({"public": self.public, "secret": self.secret}, file)

    @classmethod
    def load(cls, path: Path) -> Keys:
        """Read the pair that `save` wrote; raises `ConfigurationError` when others may read it or it is garbled."""
        try:
            with open(path, encoding="ascii") as file:
                mode = os.fstat(file.fileno()).st_mode & 0o777
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"the key file {path} cannot be read: {error}; copy the key file of the first host to this one"
            ) from error
        if mode & 0o077:
            raise ConfigurationError(f"others may read the key file {path} (mode {mode:03o}): chmod 600 {path}")
        keys = cls._parse(text)
        if keys is None:
            raise ConfigurationError(f"{path} holds no key pair; copy the key file of the first host again")
        return keys

    @classmethod
    def _parse(cls, text: str) -> Keys | None:
        try:
            pair = json.loads(text)
            keys = cls(public=str(pair["public"]), secret=str(pair["secret"]))
            return keys if zmq.curve_public(keys.secret.encode()) == keys.public.encode() else None
        except (ValueError, KeyError, TypeError, zmq.ZMQError):
            return None
