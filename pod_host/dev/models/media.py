"""Media parts of a prompt, fetched before a call is sent."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

from pod_host.contract.base import JsonObject
from pod_host.dev.models.base import FileReader, ModelRefusal

IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF: Final = "application/pdf"


@dataclass(frozen=True)
class Media:
    """``base64``: the file's bytes."""

    media_type: str
    base64: str
    name: str

    @property
    def data_url(self) -> str:
        return f"data:{self.media_type};base64,{self.base64}"


async def fetch(part: JsonObject, files: FileReader, readable: frozenset[str]) -> Media:
    """Raises ModelRefusal: ``unsupported_input`` for a kind that is not in ``readable``, ``invalid_request`` for a
    reference that names nothing."""
    reference = part["reference"]
    media_type = str(part["mediaType"]).split(";")[0].strip().lower()
    name = (
        str(reference.get("name") or reference.get("artifactId") or "file") if isinstance(reference, dict) else "file"
    )
    if media_type not in readable:
        raise ModelRefusal("unsupported_input", f"{name}: this model does not read {media_type}")
    try:
        content, _ = await files(reference)
    except LookupError as fault:
        raise ModelRefusal("invalid_request", f"{name} could not be read: {fault}") from None
    return Media(media_type, base64.b64encode(content).decode("ascii"), name)
