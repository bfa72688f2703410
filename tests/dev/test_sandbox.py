"""The sandbox's identity when it comes from outside, as in a cluster."""

from __future__ import annotations

from pathlib import Path

from tests.dev.conftest import Build


async def test_an_id_and_a_token_from_outside_are_what_a_host_joins_with(build: Build, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("from-a-secret\n")
    world = await build(sandbox_id="net/one", join_token_file=token)
    assert world.runtime.sandbox_id == "net/one"
    assert (await world.pod.join_answer(joinToken="another")).status_code == 401
    assert (await world.pod.join())["sandboxId"] == "net/one"
    assert token.read_text() == "from-a-secret\n"  # not ours to write


async def test_a_token_that_is_rotated_counts_from_the_next_join_on(build: Build, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    world = await build(join_token_file=token)
    await world.pod.join()
    token.write_text("second")
    assert (await world.pod.renew()).status_code == 200
    assert (await world.pod.join_answer(joinToken="first")).status_code == 401
    assert (await world.pod.join_answer(joinToken="second")).status_code == 200


async def test_without_a_token_in_the_file_nobody_joins(build: Build, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("\n")
    world = await build(join_token_file=token)
    for given in ("x", "\n"):
        assert (await world.pod.join_answer(joinToken=given)).status_code == 401
    token.write_bytes(b"\xff")
    world.pod.join_token = lambda: "x"  # type: ignore[method-assign] # it would read the same file
    assert (await world.pod.join_answer(joinToken="x")).status_code == 401
    refused = [event["reason"] for event in await world.north.events() if event["type"] == "host.refused"]
    assert "the join token's file is empty" in refused
    assert [reason for reason in refused if "cannot be read" in reason]
