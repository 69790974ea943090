"""Seals: the SHA-256 hash of a file's bytes, kept in the file itself, so that damage is noticed before it does harm.

The hash is written in hexadecimal digits near the end of the file, and it is the hash of all bytes of the file with
zeros in place of these digits. So every byte is covered, even where no reader of the format looks. A seal
protects against accidents, not against forgers: whoever changes a file on purpose can seal it again.
"""

import hashlib
import json
import os
import re
from typing import Any, BinaryIO, Final, final

BLANK: Final = b"0" * 64  # what stands in place of the digits while the hash is computed
ZIP_COMMENT: Final = b"sha256:" + BLANK
BLOCK: Final = 1 << 20
_END: Final = b"PK\x05\x06"  # begins the last record of a zip archive, which has 22 bytes and then the comment
_END_SIZE: Final = 22
_SEAL: Final = re.compile(rb'"[^"]{6}": "([^"]{64})"\s*\}\s*$')  # the last entry; one bit may be wrong in its name, too


@final
class SealingWriter:
    """Write a zip archive to a file and hash it on the way. The archive must have ZIP_COMMENT as its comment.

    Args:
        file: The file, which must be empty and seekable.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        """Write some bytes. There is no `seek`, so that a ZipFile writes every byte once and in order.

        Args:
            content: The bytes.
        """
        self._hash.update(content)
        return self._file.write(content)

    def flush(self) -> None:
        """Do nothing: whoever opened the file flushes it."""

    def seal(self) -> None:
        """Write the hash in place of the comment's zeros, after the archive was closed."""
        self._file.seek(-len(BLANK), os.SEEK_END)
        self._file.write(self._hash.hexdigest().encode())


def check_zip(file: BinaryIO) -> bool:
    """Check the seal of a zip archive; raise ValueError if the file is damaged.

    Args:
        file: The file; it is read from its beginning to its end.

    Returns:
        Whether there is a seal; there is none in files of earlier versions.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END_SIZE - len(ZIP_COMMENT)))
    tail = file.read()
    if tail[-_END_SIZE:].startswith(_END) and tail.endswith(b"\0\0"):  # an archive without a comment
        return False
    length = len(ZIP_COMMENT).to_bytes(2, "little")
    if not tail.startswith(_END) or tail[_END_SIZE - 2 : _END_SIZE] != length:
        raise ValueError("the end is not that of an archive of ours")
    file.seek(0)
    found, left = hashlib.sha256(), size - len(BLANK)
    while left > 0:
        block = file.read(min(BLOCK, left))
        if not block:
            raise ValueError("the file was cut short while it was read")
        found.update(block)
        left -= len(block)
    found.update(BLANK)
    if found.hexdigest().encode() != tail[-len(BLANK) :]:
        raise ValueError("the checksum is wrong")
    return True


def sealed_json(document: dict[str, Any], indent: int | None = None) -> bytes:
    """Return a document as JSON with a seal as its last entry, `sha256`.

    Args:
        document: Plain JSON values.
        indent: By how much to indent; None for a single line.

    >>> parts, sealed = opened_json(sealed_json({"answer": 42}))
    >>> parts, sealed
    ({'answer': 42}, True)
    """
    text = json.dumps(document | {"sha256": BLANK.decode()}, indent=indent).encode()
    head, _, tail = text.rpartition(BLANK)
    return head + hashlib.sha256(text).hexdigest().encode() + tail


def is_intact(content: bytes) -> bool:
    """Return whether the seal of a JSON document is right, without reading the document; True if there is no seal.

    Args:
        content: What `sealed_json` returned, or a JSON document of an earlier version.

    >>> text = sealed_json({"answer": 42})
    >>> is_intact(text), is_intact(text.replace(b"42", b"43")), is_intact(b'{"answer": 42}')
    (True, False, True)
    """
    found = _SEAL.search(content, max(0, len(content) - len(BLANK) - 40))
    if found is None:
        return True
    head, tail = content[: found.start(1)], content[found.end(1) :]
    return hashlib.sha256(head + BLANK + tail).hexdigest().encode() == found[1]


def opened_json(content: bytes) -> tuple[dict[str, Any], bool]:
    """Return a JSON document without its seal, and whether it has one; raise ValueError if it is damaged.

    Whatever its name is, a last entry of 64 characters is taken for a seal: one bit may be wrong in the name, too.

    Args:
        content: What `sealed_json` returned, or a JSON document of an earlier version, which has no seal.
    """
    try:
        parts = json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(parts, dict):
        raise ValueError("not a document")
    name, digits = next(reversed(parts.items()), ("", None))
    if not isinstance(digits, str) or len(digits) != len(BLANK):
        return parts, False
    head, _, tail = content.rpartition(digits.encode())
    if name != "sha256" or hashlib.sha256(head + BLANK + tail).hexdigest() != digits:
        raise ValueError("the checksum is wrong")
    del parts[name]
    return parts, True
