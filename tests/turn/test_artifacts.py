"""The artifact requests: chunks both ways, answers that are lost, uploads that fail (Harness API v5, section 4b)."""

from __future__ import annotations

import pytest

from pod_host.contract.base import JsonObject
from pod_host.errors import ChannelClosed, RuntimeRefusal
from pod_host.turn.artifacts import ArtifactRefused, Artifacts, Content, ContentChanged
from pod_host.turn.endings import Stopped
from pod_host.turn.requests import Requests
from pod_host.turn.stop import Stop
from tests.turn.artifact_store import ArtifactStore
from tests.turn.double import Runtime, text

DATA = bytes(range(256)) * 4
NAMED = {"key": "k", "effect_id": "e", "name": "a.bin"}


def client(store: ArtifactStore) -> Artifacts:
    runtime = Runtime(lambda call, effect_id: text(""), artifacts=store)
    return Artifacts(Requests(runtime.lease(), Stop()), store.chunk_bytes)


class Ops:
    """Keeps what was asked, and loses the answer of the request number ``at`` of this op."""

    def __init__(self, op: str = "", at: int = 0, refusal: RuntimeRefusal | None = None) -> None:
        self.asked: list[JsonObject] = []
        self._op = op
        self._at = at
        self._refusal = refusal or RuntimeRefusal("internal", "the answer was lost")

    def __call__(self, params: JsonObject) -> None:
        self.asked.append(params)
        if params.get("op") == self._op and [asked.get("op") for asked in self.asked].count(self._op) == self._at:
            raise self._refusal

    @property
    def ops(self) -> list[str]:
        return [params["op"] for params in self.asked]


async def test_what_fits_one_chunk_is_written_by_one_request() -> None:
    ops = Ops()
    store = ArtifactStore(fault=ops)
    meta = await client(store).write(Content.of(DATA), **NAMED)
    assert ops.ops == ["begin"]
    assert (meta.artifact_id, meta.version, meta.size) == ("af_1", 1, len(DATA))
    assert store.named("a.bin").data == DATA


@pytest.mark.parametrize("chunk", [1, 100, 1023, 1024])
async def test_what_is_longer_goes_chunk_by_chunk_within_the_limit(chunk: int) -> None:
    store = ArtifactStore(chunk_bytes=chunk)
    await client(store).write(Content.of(DATA), **NAMED)
    assert store.named("a.bin").data == DATA
    assert store.largest <= chunk
    assert store.uploads == {}


@pytest.mark.parametrize(("op", "at"), [("begin", 1), ("chunk", 1), ("chunk", 3), ("chunk", 11), ("commit", 1)])
async def test_an_answer_that_was_lost_is_asked_for_again(op: str, at: int) -> None:
    ops = Ops(op, at)
    store = ArtifactStore(chunk_bytes=100, fault=ops)
    assert (await client(store).write(Content.of(DATA), **NAMED)).version == 1
    assert store.named("a.bin").data == DATA
    chunks = [params["offset"] for params in ops.asked if params["op"] == "chunk"]
    again = [chunks[at - 1]] if op == "chunk" else []
    assert sorted(chunks) == sorted([*range(0, len(DATA), 100), *again])


async def test_a_key_that_was_written_sends_nothing_more() -> None:
    ops = Ops()
    store = ArtifactStore(chunk_bytes=100, fault=ops)
    first = await client(store).write(Content.of(DATA), **NAMED)
    ops.asked.clear()
    assert await client(store).write(Content.of(DATA), **NAMED) == first
    assert ops.ops == ["begin"]


async def test_an_upload_that_fails_is_aborted() -> None:
    async def read(offset: int, length: int) -> bytes:
        if offset > 300:
            raise ContentChanged("it is gone")
        return DATA[offset : offset + length]

    store = ArtifactStore(chunk_bytes=100)
    with pytest.raises(ContentChanged):
        await client(store).write(Content(1000, read), **NAMED)
    assert (store.uploads, store.versions) == ({}, {})


async def test_content_that_ends_early_is_not_stored() -> None:
    async def read(offset: int, length: int) -> bytes:
        return DATA[:350][offset : offset + length]

    store = ArtifactStore(chunk_bytes=100)
    with pytest.raises(ContentChanged):
        await client(store).write(Content(1000, read), **NAMED)
    assert store.versions == {}


async def test_an_upload_that_a_lost_connection_breaks_off_stops_the_turn() -> None:
    store = ArtifactStore(chunk_bytes=100, fault=Ops("chunk", 2, ChannelClosed("it went")))
    with pytest.raises(Stopped) as stopped:
        await client(store).write(Content.of(DATA), **NAMED)
    assert stopped.value.reason == "connection.lost"


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"name": "a/b"}, "invalid"),
        ({"name": "x" * 300}, "invalid"),
        ({"name": "\ud800"}, "invalid"),
        ({"name": None, "artifact_id": "af_9"}, "not_found"),
    ],
)
async def test_what_cannot_be_is_refused(members: dict[str, str | None], code: str) -> None:
    with pytest.raises(ArtifactRefused) as refused:
        await client(ArtifactStore()).write(Content.of(b"x"), **{**NAMED, **members})  # type: ignore[arg-type]
    assert refused.value.code == code


async def test_a_new_version_is_of_its_artifact() -> None:
    store = ArtifactStore()
    store.put(b"old")
    meta = await client(store).write(Content.of(b"new"), key="k", effect_id="e", artifact_id="af_1")
    assert (meta.artifact_id, meta.version, meta.name) == ("af_1", 2, "a.txt")


async def test_all_ranges_are_of_the_version_that_the_first_one_was() -> None:
    store = ArtifactStore(chunk_bytes=100)
    store.put(DATA)

    def newer(params: JsonObject) -> None:
        if params["offset"] == 0:
            store.put(b"", artifactId="af_1")

    store.fault = newer
    piece = await client(store).read_all("af_1", None, len(DATA))
    assert (piece.data, piece.meta.version, piece.eof) == (DATA, 1, True)
    assert store.largest <= 100
