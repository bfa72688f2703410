"""Glob patterns, as Node's ``path.matchesGlob`` takes them, in time that no pattern can blow up.

``*`` and ``?`` stay within a name, ``**`` crosses directories, ``{a,b}`` and ``{1..3}`` stand for several patterns,
``[a-z]``, ``[!a]`` and ``[[:alpha:]]`` for one character, ``@( )``, ``?( )``, ``*( )``, ``+( )`` and ``!( )`` for
alternatives told apart by ``|``; ``\\`` takes the next character as it is. None of them matches a leading dot.

A plain pattern, one of texts, ``*``, ``?``, ``[ ]`` and no more than one ``**``, is made a regular expression that never
goes back: what stands between two stars is taken where it first occurs, and atomic groups keep it there. Of others none
is made: ``+(*(a))b`` would hang Python's. There positions are carried as sets, and what a group takes from a position is
worked out once, so the time is at most the pattern's length times the square of the name's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pod_host.limits import GLOB_PATTERNS

MAGIC: Final = re.compile(r"[*?\[\]{}()!+@\\|]")
"""A name of a pattern without any of these is just that name."""

_CLASSES: Final[dict[str, Callable[[str], bool]]] = {
    "alpha": str.isalpha,
    "digit": str.isdecimal,
    "alnum": str.isalnum,
    "upper": str.isupper,
    "lower": str.islower,
    "space": str.isspace,
    "punct": lambda c: c.isprintable() and not c.isalnum() and not c.isspace(),
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}
_CLASS: Final = re.compile(r"\[:(\w+):\]")
_RANGE: Final = re.compile(r"(-?\d{1,9}|[a-zA-Z])\.\.(-?\d{1,9}|[a-zA-Z])")
_BRACES: Final = re.compile(r"\\.|[{},]", re.DOTALL)
_NESTING: Final = 20  # groups within groups, at most
_CHARACTERS: Final = 65_536  # of all patterns that one stands for: a path has 4096 at most


class BadGlob(ValueError):
    """The pattern cannot be used. The text says why."""


@dataclass(frozen=True, slots=True)
class _One:
    """One character: one of ``items`` (ranges or class names), or with ``negated`` none of them."""

    items: tuple[tuple[str, str] | str, ...]
    negated: bool

    def matches(self, character: str) -> bool:
        return self.negated != any(
            _CLASSES[item](character) if isinstance(item, str) else item[0] <= character <= item[1]
            for item in self.items
        )

    def expression(self) -> str | None:
        """As a regular expression that takes no slash; None where a class is named."""
        ranges = [item for item in self.items if not isinstance(item, str)]
        if len(ranges) < len(self.items):
            return None
        within = "".join(f"{re.escape(low)}-{re.escape(high)}" for low, high in ranges if low <= high)
        if self.negated:
            return f"[^/{within}]"
        return f"(?!/)[{within}]" if within else "(?!)"


_ANY: Final = _One((), negated=True)  # ?


@dataclass(frozen=True, slots=True)
class _Many:
    """``*``: any characters, also none."""


@dataclass(frozen=True, slots=True)
class _Group:
    """``kind`` ( alternatives )."""

    kind: str
    alternatives: tuple[tuple[_Node, ...], ...]


_Node: TypeAlias = str | _One | _Many | _Group  # a str is itself


class Glob:
    """A pattern, made ready. ``BadGlob`` when it cannot be."""

    def __init__(self, pattern: str) -> None:
        self._by_name = "/" not in pattern
        patterns = [[_Name(name) for name in _names(text)] for text in _braces_open(pattern)]
        plain = [_expression(pattern, self._by_name) for pattern in patterns]
        self._patterns = [pattern for pattern, text in zip(patterns, plain, strict=True) if text is None]
        self._plain = [re.compile(text).fullmatch for text in plain if text is not None]

    def matching(self, paths: list[str]) -> list[str]:
        """Those of ``paths`` that it matches."""
        if len(self._plain) == 1 and not self._patterns:
            matches = self._plain[0]
            return [path for path in paths if matches(path)]
        return [path for path in paths if self.matches(path)]

    def matches(self, path: str) -> bool:
        """Whether it matches ``path``, relative and with ``/``. A pattern without ``/`` is matched against the name."""
        for matches in self._plain:
            if matches(path):
                return True
        if not self._patterns:
            return False
        names = [path.rpartition("/")[2]] if self._by_name else path.split("/")
        return any(_path_matches(pattern, names) for pattern in self._patterns)


def _names(pattern: str) -> list[str]:
    """The parts between slashes. ``a//b`` and ``a/./b`` are ``a/b``; at either end they say something, and stay."""
    first, *further = pattern.split("/")
    return [first, *(name for name in further[:-1] if name not in ("", ".")), *further[-1:]]


def _path_matches(pattern: Sequence[_Name], names: list[str]) -> bool:
    positions = {0}  # how many names may have been used up so far
    for index, part in enumerate(pattern):
        following: set[int] = set()
        if part.crosses:
            # As long as it can: over names without a leading dot; at the pattern's end it needs one at least.
            for position in positions:
                if index + 1 < len(pattern):
                    following.add(position)
                while position < len(names) and not names[position].startswith("."):
                    position += 1
                    following.add(position)
        else:
            following = {p + 1 for p in positions if p < len(names) and part.matches(names[p])}
        if not following:
            return False
        positions = following
    return len(names) in positions


def _expression(pattern: Sequence[_Name], by_name: bool) -> str | None:
    """A regular expression for whole paths; None for what is not plain."""
    if sum(part.crosses for part in pattern) > 1:
        return None
    made = "(?>(?:[^/]*/)*)" if by_name else ""
    for index, part in enumerate(pattern):
        last = index == len(pattern) - 1
        if part.crosses:
            made += r"(?!\.)[^/]+(?:/(?!\.)[^/]+)*" if last else r"(?:(?!\.)[^/]+/)*"
            continue
        name = part.expression()
        if name is None:
            return None
        made += name if last else f"{name}/"
    return made


class _Name:
    """A part of a pattern between two slashes."""

    def __init__(self, text: str) -> None:
        self.crosses = text == "**"
        self._nodes, _ = _parse(text, 0, 0)
        # Most names fail here already: the plain text at both ends.
        self._prefix = self._nodes[0] if self._nodes and isinstance(self._nodes[0], str) else ""
        self._suffix = self._nodes[-1] if self._nodes and isinstance(self._nodes[-1], str) else ""
        self._takes_dot = bool(self._nodes) and isinstance(self._nodes[0], str | _Group)

    def matches(self, name: str) -> bool:
        if not name.startswith(self._prefix) or not name.endswith(self._suffix):
            return False
        if name.startswith(".") and not self._takes_dot:
            return False
        return len(name) in _Match(name).ends(self._nodes, {0})

    def expression(self) -> str | None:
        """A regular expression for the same names; None where groups or named classes are in it."""
        made = "" if self._takes_dot else r"(?!\.)"
        starred = False
        between = ""  # what follows the last star so far
        for node in self._nodes:
            if isinstance(node, _Many):
                made += f"(?>[^/]*?{between})" if starred else between
                starred, between = True, ""
            elif isinstance(node, str):
                between += re.escape(node)
            else:
                one = node.expression() if isinstance(node, _One) else None
                if one is None:
                    return None
                between += one
        return made + (f"[^/]*{between}" if starred else between)


class _Match:
    """One name, matched."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._taken: dict[tuple[int, int], set[int]] = {}  # what a group, by its id, takes once from a start

    def ends(self, nodes: Sequence[_Node], starts: set[int]) -> set[int]:
        """Every position that ``nodes`` can end at, begun at any of ``starts``."""
        for index, node in enumerate(nodes):
            if not starts:
                break
            if isinstance(node, str):
                starts = {start + len(node) for start in starts if self._text.startswith(node, start)}
            elif isinstance(node, _Group):
                starts = set().union(*(self._group(node, start, nodes[index + 1 :]) for start in starts))
            else:
                starts = self._not_on_a_dot(starts)
                if isinstance(node, _Many):
                    starts = self._from_first(starts)
                else:
                    starts = {at + 1 for at in starts if at < len(self._text) and node.matches(self._text[at])}
        return starts

    def _group(self, group: _Group, start: int, rest: Sequence[_Node]) -> set[int]:
        """Every position that ``group`` can end at, begun at ``start``. ``rest``: what follows it, always the same."""
        if group.kind == "!":
            return self._without(group, start, rest)
        reached = set(self._once(group, start))
        waiting = list(reached) if group.kind in "*+" else []
        while waiting:
            further = self._once(group, waiting.pop()) - reached
            reached |= further
            waiting += further
        return reached | {start} if group.kind in "*?" else reached

    def _once(self, group: _Group, start: int) -> set[int]:
        key = (id(group), start)
        if key not in self._taken:
            self._taken[key] = set().union(*(self.ends(alternative, {start}) for alternative in group.alternatives))
        return self._taken[key]

    def _without(self, group: _Group, start: int, rest: Sequence[_Node]) -> set[int]:
        """``!( )`` takes anything, unless the name would end after an alternative and what follows it.

        Where a ``*`` is all that follows, that takes one character at least: ``!(a)*`` excludes ab, but not a.
        """
        key = (id(group), start)
        if key not in self._taken:
            starts = self._not_on_a_dot({start})
            if rest and all(isinstance(node, _Many) for node in rest):
                rest = (_ANY, *rest)
            ends = (self.ends((*alternative, *rest), starts) for alternative in group.alternatives)
            excluded = any(len(self._text) in end for end in ends)
            self._taken[key] = set() if excluded else self._from_first(starts)
        return self._taken[key]

    def _from_first(self, starts: set[int]) -> set[int]:
        return set(range(min(starts), len(self._text) + 1)) if starts else starts

    def _not_on_a_dot(self, starts: set[int]) -> set[int]:
        """A leading dot is matched by a dot alone."""
        return starts - {0} if self._text.startswith(".") else starts


def _parse(text: str, at: int, depth: int) -> tuple[tuple[_Node, ...], int]:
    """The nodes of ``text`` from ``at`` on, and where they end: at the end, or within a group at its ``|`` or ``)``."""
    nodes: list[_Node] = []
    plain = ""
    while at < len(text) and not (depth and text[at] in "|)"):
        node: _Node | None = None
        character = text[at]
        if character == "\\" and at + 1 < len(text):
            plain, at = plain + text[at + 1], at + 2
            continue
        if character in "@?*+!" and text.startswith("(", at + 1) and (group := _parse_group(text, at, depth)):
            node, at = group
        elif character == "[" and (one := _parse_class(text, at + 1)):
            node, at = one
        elif character == "*":
            node, at = _Many(), at + 1
        elif character == "?":
            node, at = _ANY, at + 1
        if node is None:
            plain, at = plain + character, at + 1
            continue
        if plain:
            nodes.append(plain)
            plain = ""
        nodes.append(node)
    if plain:
        nodes.append(plain)
    return tuple(nodes), at


def _parse_group(text: str, at: int, depth: int) -> tuple[_Group, int] | None:
    """The group whose kind is at ``at``, and what follows it. None when it is never closed: then it is plain text."""
    if depth == _NESTING:
        raise BadGlob(f"it nests more than {_NESTING} groups")
    alternatives: list[tuple[_Node, ...]] = []
    end = at + 1
    while end < len(text) and text[end] != ")":
        nodes, end = _parse(text, end + 1, depth + 1)
        alternatives.append(nodes)
    return (_Group(text[at], tuple(alternatives)), end + 1) if end < len(text) else None


def _parse_class(text: str, at: int) -> tuple[_One, int] | None:
    """The class that begins at ``at``, after its ``[``, and what follows it. None when it is never closed."""
    if "]" not in text[at + 1 :]:
        return None
    items: list[tuple[str, str] | str] = []
    negated = text.startswith(("!", "^"), at)
    at += negated
    first = at
    while at < len(text):
        if text[at] == "]" and at > first:
            return _One(tuple(items), negated), at + 1
        named = _CLASS.match(text, at)
        if named is not None and named[1] in _CLASSES:
            items.append(named[1])
            at = named.end()
            continue
        low, at = _class_character(text, at)
        high = low
        if text.startswith("-", at) and at + 1 < len(text) and text[at + 1] != "]":
            high, at = _class_character(text, at + 1)
        items.append((low, high))
    return None


def _class_character(text: str, at: int) -> tuple[str, int]:
    return (text[at + 1], at + 2) if text[at] == "\\" and at + 1 < len(text) else (text[at], at + 1)


def _braces_open(pattern: str) -> list[str]:
    """The patterns that ``pattern`` stands for, its braces opened."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        if len(done) + len(waiting) > GLOB_PATTERNS or sum(map(len, done)) + sum(map(len, waiting)) > _CHARACTERS:
            raise BadGlob(f"its braces stand for more than {GLOB_PATTERNS} patterns or {_CHARACTERS} characters")
        text = waiting.pop()
        opened = _open_first(text)
        if opened:
            waiting += reversed(opened)
        else:
            done.append(text)
    return done


def _open_first(text: str) -> list[str]:
    """A pattern for each part of the first pair of braces that holds a comma or a range; none when there is no such."""
    first: tuple[int, int, list[str]] | None = None  # where the pair begins and ends, and its parts
    begun: list[list[int]] = []  # of each pair that is open: its brace, and the commas in it
    for token in _BRACES.finditer(text):
        at = token.start()
        if token[0] == "{":
            begun.append([at])
        elif token[0] == "," and begun:
            begun[-1].append(at)
        elif token[0] == "}" and begun:
            cuts = begun.pop()
            parts = [text[low + 1 : high] for low, high in zip(cuts, [*cuts[1:], at], strict=True)]
            if len(parts) == 1:
                parts = _range(parts[0])
            if parts and (first is None or cuts[0] < first[0]):
                first = (cuts[0], at, parts)
    if first is None:
        return []
    start, end, parts = first
    return [text[:start] + part + text[end + 1 :] for part in parts]


def _range(text: str) -> list[str]:
    found = _RANGE.fullmatch(text)
    if found is None or found[1].isalpha() != found[2].isalpha():
        return []
    low, high = (ord(end) if end.isalpha() else int(end) for end in found.groups())
    if abs(high - low) >= GLOB_PATTERNS:
        raise BadGlob(f"its braces stand for more than {GLOB_PATTERNS} patterns")
    numbers = range(low, high + 1) if low <= high else range(low, high - 1, -1)
    return [chr(number) if found[1].isalpha() else str(number) for number in numbers]
