"""Approvals end to end: a tool that asks waits for a person in the terminal; where there is none, the answer is no."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.dev.test_command import Terminal, dev, place

__all__ = ["place"]

ASK = 'use the tool pay with {"amount": 3}'


class Shop:
    """An HTTP tool on loopback that counts who paid."""

    def __init__(self) -> None:
        self.paid: list[bytes] = []
        shop = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                shop.paid.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(b'{"receipt": 7}')

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/pay"


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    serving = threading.Thread(target=shop.server.serve_forever)
    serving.start()
    yield shop
    shop.server.shutdown()
    serving.join()
    shop.server.server_close()


@pytest.fixture
def agent(place: Path, shop: Shop) -> Path:
    amount = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
    pay = {"name": "pay", "inputSchema": amount, "http": {"url": shop.url}, "approval": "always"}
    path = place / "agent.json"
    path.write_text(json.dumps({"name": "payer", "tools": [pay]}))
    return path


def test_without_a_terminal_the_answer_is_no_and_the_exit_code_1(place: Path, agent: Path, shop: Shop) -> None:
    ran = dev(place, "--agent", str(agent), "--message", ASK)
    assert ran.returncode == 1, ran.stdout
    assert "not approved: no terminal to ask at" in ran.stdout
    assert "tool.denied" in ran.stdout
    assert "— completed" in ran.stdout
    assert shop.paid == []


def test_a_pipe_is_no_person_either_and_the_next_message_goes_on(place: Path, agent: Path, shop: Shop) -> None:
    ran = dev(place, "--agent", str(agent), stdin=f"{ASK}\nrun `echo $((40 + 2))`\n")
    assert ran.returncode == 1, ran.stdout
    assert "not approved: no terminal to ask at" in ran.stdout
    assert "    42" in ran.stdout
    assert shop.paid == []


def test_a_person_who_says_no_is_obeyed_and_the_model_told(place: Path, agent: Path, shop: Shop) -> None:
    with Terminal(place, "--agent", str(agent), "--message", ASK) as terminal:
        terminal.until(r"pay")
        terminal.until(r"\[y/N\]")
        terminal.type("n\r")
        terminal.until(r"tool\.denied")
        terminal.until(r"— completed")
        assert terminal.exit_code() == 0
    assert shop.paid == []


def test_a_person_who_says_yes_lets_the_call_reach_the_gate_once(place: Path, agent: Path, shop: Shop) -> None:
    with Terminal(place, "--agent", str(agent), "--message", ASK) as terminal:
        terminal.until(r"\[y/N\]")
        terminal.type("y\r")
        shown = terminal.until(r"— completed")
        assert "tool.denied" not in shown
        assert terminal.exit_code() == 0
    assert len(shop.paid) <= 1
