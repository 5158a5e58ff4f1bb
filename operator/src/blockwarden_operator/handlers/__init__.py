"""kopf, at the edge: events become keys on a queue, and nothing else happens here."""

from .watches import register

__all__ = ["register"]
