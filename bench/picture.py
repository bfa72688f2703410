"""The picture of the last results: how much of its budget each number takes, and the peers beside us, as SVG.

``python -m bench.picture``
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from typing import Any

from bench.rows import RESULTS, Check

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.soft { fill: #57606a } .line { stroke: #57606a; stroke-dasharray: 3 3 } .ok { fill: #2da44e } .over { fill: #d4a72c }
.us { fill: #2da44e } .other { fill: #8c959f }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .soft { fill: #9198a1 } .line { stroke: #9198a1 } }
"""
_LEFT, _BARS, _RIGHT, _STEP, _TOP = 330, 340, 180, 22, 46


@dataclass(frozen=True)
class Bar:
    """``part``: of the width that stands for 1."""

    name: str
    part: float
    text: str
    kind: str


def draw() -> None:
    """``budgets.svg`` and, when peers were measured, ``peers.svg``, from ``results/*.json``."""
    told = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    rows = [row for result in told for row in result["rows"]]
    bars = [_bar(row, check) for row in rows for check in row["checks"]]
    title = "How much of its budget each number takes (shorter is better; the line is the budget)"
    (RESULTS / "budgets.svg").write_text(svg(title, bars, line_at=1.0, widest=1.6))
    peers = [row for result in told if result["bench"] == "peers" for row in result["rows"]]
    shown = [row for row in peers if "true" in row["what"]]
    if shown:
        most = max(row["median"] for row in shown)
        bars = [
            Bar(
                row["what"],
                row["median"] / most,
                f"{row['median']:.3g} {row['unit']}",
                "us" if "pod_host" in row["what"] else "other",
            )
            for row in shown
        ]
        title = "To run `true` and have its exit code, p50 (shorter is better)"
        (RESULTS / "peers.svg").write_text(svg(title, bars, line_at=None, widest=1.0))


def _bar(row: dict[str, Any], told: dict[str, Any]) -> Bar:
    check = Check(**told)
    of = f" ({check.what})" if check.what else ""
    return Bar(f"{row['what']}{of}", check.part, str(check).rstrip(" ✗()"), "ok" if check.part <= 1 else "over")


def svg(title: str, bars: list[Bar], *, line_at: float | None, widest: float) -> str:
    """Horizontal bars. ``widest``: the part that takes the whole width; longer bars are cut there."""
    scale = _BARS / widest
    height = _TOP + _STEP * len(bars) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _BARS + _RIGHT}" height="{height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text x="10" y="22" font-weight="bold">{escape(title)}</text>',
    ]
    for number, bar in enumerate(bars):
        y = _TOP + _STEP * number
        width = max(min(bar.part, widest) * scale, 1.0)
        parts += [
            f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(bar.name)}</text>',
            f'<rect class="{bar.kind}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="15" rx="2"/>',
            f'<text class="soft" x="{_LEFT + width + 6:.1f}" y="{y + 12}">{escape(bar.text)}</text>',
        ]
    if line_at is not None:
        x = _LEFT + line_at * scale
        parts.append(f'<line class="line" x1="{x}" x2="{x}" y1="{_TOP - 8}" y2="{height - 6}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    draw()
