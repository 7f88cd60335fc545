"""Ids that name the effect of a step, for idempotency downstream."""

from __future__ import annotations

from hashlib import blake2b


def effect_id(namespace: str, incarnation: int, instance_id: str, message_id: str, key: str) -> str:
    """Gives the stable id of a step's effect: 32 hexadecimal digits.

    It is BLAKE2b with a 16-byte digest over the UTF-8 text
    `namespace LF incarnation LF instance_id LF message_id LF key`, where LF is one line feed, which none of
    the parts can contain. Every SDK computes it the same way.
    """
    text = f"{namespace}\n{incarnation}\n{instance_id}\n{message_id}\n{key}"
    return blake2b(text.encode(), digest_size=16).hexdigest()
