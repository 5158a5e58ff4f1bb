"""The route table: everything that the public port serves. Whatever is not here is answered with one and the same 404."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from . import chat, completions, models
from .call import GenerationRoute

GENERATION: Final[Mapping[str, GenerationRoute]] = {route.path: route for route in (chat.ROUTE, completions.ROUTE)}


@dataclass(frozen=True, slots=True)
class ModelsRoute:
    """The list of models, or one of them by name."""

    model: str | None
    name: str = models.NAME


Route = GenerationRoute | ModelsRoute


def find_route(method: str, path: str) -> Route | None:
    """The route of a request; None is the 404 that tells nothing."""
    if method == "POST":
        return GENERATION.get(path)
    if method == "GET" and path == models.PATH:
        return ModelsRoute(None)
    if method == "GET" and path.startswith(models.PATH + "/") and len(path) > len(models.PATH) + 1:
        return ModelsRoute(path.removeprefix(models.PATH + "/"))
    return None
