"""Media types by a file's name, and names by a media type."""

from __future__ import annotations

from typing import Final

OTHER: Final = "application/octet-stream"
_BY_SUFFIX: Final = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "txt": "text/plain",
    "log": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "ts": "text/typescript",
    "py": "text/x-python",
    "sh": "text/x-shellscript",
    "json": "application/json",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zip": "application/zip",
    "tar": "application/x-tar",
    "gz": "application/gzip",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
    "mp4": "video/mp4",
}
_SUFFIXES: Final = {media_type: suffix for suffix, media_type in reversed(_BY_SUFFIX.items())}


def media_type_of(name: str) -> str:
    """By what stands behind the last dot of a name or path."""
    _, dot, suffix = name.rpartition("/")[2].rpartition(".")
    return _BY_SUFFIX.get(suffix.lower(), OTHER) if dot else OTHER


def suffix_of(media_type: str) -> str:
    """Without the dot; ``bin`` for a type that is not known."""
    plain = media_type.split(";")[0].strip().lower()
    return _SUFFIXES.get(plain, "txt" if plain.startswith("text/") else "bin")
