"""The coverage-guided run: ``python -m tests.fuzz.run --seconds 60 [TARGET …]`` (``make fuzz SECONDS=60``).

Each target runs under Atheris (libFuzzer) in a process of its own, from the corpus on. What it found is then replayed
under coverage.py: the smallest inputs that reach every branch become the corpus, and the branches of the target's own
readers are counted. A crash is left in ``tests/fuzz/crashes``, and ends the run with status 1.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import logging
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CORPUS, CRASHES = HERE / "corpus", HERE / "crashes"
PACKAGE = HERE.parent.parent / "pod_host"
LONGEST = 1024  # bytes of an input
LIMITS = ("-timeout=20", "-rss_limit_mb=2048", f"-max_len={LONGEST}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument(
        "--one", nargs=argparse.REMAINDER, help=argparse.SUPPRESS
    )  # a child: target, libFuzzer's options
    parser.add_argument("--keep", nargs=2, help=argparse.SUPPRESS)  # a child: target, where its inputs were found
    asked = parser.parse_args()
    if asked.one:
        return _fuzz(asked.one[0], asked.one[1:])
    if asked.keep:
        return _keep(asked.keep[0], Path(asked.keep[1]))
    from tests.fuzz.targets import TARGETS

    print(f"{'target':12} {'executions':>10} {'edges':>6} {'corpus':>6} {'branches of its readers':>25}")
    return max([_run(target, asked.seconds) for target in asked.targets or TARGETS])


def _run(target: str, seconds: int) -> int:
    """One target, to its end. 1 for a crash."""
    CRASHES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pod-host-fuzz-") as found:
        limits = (f"-max_total_time={seconds}", f"-artifact_prefix={CRASHES}/{target}-", *LIMITS)
        ended = _child("--one", target, *limits, found, str(CORPUS / target))
        if ended.returncode:
            print(ended.stdout[-6000:], ended.stderr[-600:], file=sys.stderr)
            return 1
        executions = re.findall(r"^Done (\d+) runs", ended.stderr, re.MULTILINE)[-1]
        edges = re.findall(r" cov: (\d+) ", ended.stderr)[-1]
        kept = _child("--keep", target, found)
        kept.check_returncode()
    print(f"{target:12} {executions:>10} {edges:>6} {kept.stdout.strip():>32}", flush=True)
    return 0


def _child(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz.run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="replace")


def _fuzz(target: str, options: list[str]) -> int:
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["pod_host"]):
        targets = importlib.import_module("tests.fuzz.targets")
    from tests.fuzz.source import Bytes

    logging.disable(logging.WARNING)
    run = targets.TARGETS[target]

    def once(data: bytes) -> None:
        run(Bytes(data))

    atheris.Setup([sys.argv[0], *options], once)
    atheris.Fuzz()
    return 0


def _keep(target: str, found: Path) -> int:
    """Replays the corpus and what was found. The smallest inputs that reach every branch become the corpus; the branches
    are printed."""
    coverage: Any = importlib.import_module("coverage")
    measured = coverage.Coverage(branch=True, data_file=None, include=[f"{PACKAGE}/*"], config_file=False)
    measured.start()
    targets = importlib.import_module("tests.fuzz.targets")
    from tests.fuzz.source import Bytes

    inputs = {path.read_bytes() for place in (found, CORPUS / target) for path in place.iterdir()}
    ordered = sorted(inputs, key=lambda data: (len(data), data))
    for number, data in enumerate(ordered):
        measured.switch_context(str(number))
        targets.TARGETS[target](Bytes(data))
    measured.stop()
    kept = _reaching_more(measured.get_data(), ordered)
    for old in (CORPUS / target).iterdir():
        old.unlink()
    for data in kept:
        (CORPUS / target / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    print(f"{len(kept):6} {_branches(measured, targets.READERS[target])}")
    return 0


def _reaching_more(data: Any, ordered: list[bytes]) -> list[bytes]:
    """Those inputs that went where none before them did."""
    reached: set[tuple[str, tuple[int, int]]] = set()
    kept = []
    for number, given in enumerate(ordered):
        data.set_query_context(str(number))
        arcs = {(name, arc) for name in data.measured_files() for arc in data.arcs(name) or ()}
        if not arcs <= reached:
            reached |= arcs
            kept.append(given)
    data.set_query_contexts(None)
    return kept


def _branches(measured: Any, readers: Sequence[str]) -> str:
    with tempfile.NamedTemporaryFile(suffix=".json") as told:
        measured.json_report(outfile=told.name, ignore_errors=True)
        files = json.load(told)["files"]
    places = [PACKAGE / name for name in readers]
    sums = [
        report["summary"]
        for path, report in files.items()
        if any(Path(path).resolve().is_relative_to(place) for place in places)
    ]
    taken, there = (sum(each[member] for each in sums) for member in ("covered_branches", "num_branches"))
    return f"{taken} of {there} ({100 * taken / there:.0f} %)"


if __name__ == "__main__":
    sys.exit(main())
