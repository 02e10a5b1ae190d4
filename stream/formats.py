"""Which column is what: by the names of a header, or, without one, by what the columns hold.

Invariant: a column is taken only where the rule below decides; otherwise one `LogError` says how
to name the columns.  An option (`src=`, `time=` ...) always wins over the rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from .errors import LogError

Column: TypeAlias = str | int
"""A column by its name in the header or by its position from 0."""

NAMES: dict[str, tuple[str, ...]] = {
    "src": (
        *("src", "source", "from", "u", "item_u", "src_id", "source_id", "src_node", "from_node"),
        *("source_node", "from_id", "fromnodeid", "from_node_id", "user_id", "userid", "user"),
        *("sender", "head", "subject", "node1", "node_1"),
    ),
    "dst": (
        *("dst", "dest", "target", "destination", "to", "v", "item_v", "i", "dst_id", "dest_id"),
        *("target_id", "dst_node", "to_node", "target_node", "to_id", "tonodeid", "to_node_id"),
        *("item_id", "itemid", "item", "movie_id", "movieid", "product_id", "page_id"),
        *("receiver", "recipient", "tail", "object", "node2", "node_2"),
    ),
    "time": (
        *("t", "ts", "time", "timestamp", "timestamps", "datetime", "date", "item_t", "unixts"),
        *("unixtime", "unix_time", "epoch", "created_at", "time_stamp", "year", "step"),
    ),
    "kind": (
        *("kind", "type", "event", "event_type", "edge_type", "item_kind", "relation"),
        *("relation_type", "action", "etype"),
    ),
    "weight": ("weight", "w", "rating", "value", "amount", "edge_weight"),
    "label": ("label", "state_label", "y", "edge_label"),
}
"""Names by role, the preferred first; case, spaces, dots and dashes do not matter."""

USERS = {"user_id", "userid", "user"}
ITEMS = {"item_id", "itemid", "item", "movie_id", "movieid", "product_id", "page_id"}

FEATURE = re.compile(r"(?:f|feat|feature|x)_?(\d+)")
FEATURE_LIST = re.compile(r"comma_separated_list_of_features|features?|feats?")
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf(?:inity)?|nan", re.I)
DATE = re.compile(r"\d{4}[-/]\d\d?[-/]\d\d?(?:[T ].*)?")

EPOCH = 1e8  # seconds of 1973: ids are seldom as large, times since 1970 always are


@dataclass(frozen=True, slots=True)
class Roles:
    """The place of each column that is read."""

    src: int
    dst: int
    time: int | None  # None only for links, which have no time
    kind: int | None = None
    weight: int | None = None
    label: int | None = None
    features: tuple[int, ...] = ()
    apart: bool = False  # users and items: two spaces of ids
    notes: tuple[str, ...] = ()


def plain(name: str) -> str:
    """A header's name as `NAMES` spells it."""
    if name.strip() == "item.T":  # NeutronStream: item.t is the time, item.T the kind
        return "item_kind"
    return re.sub(r"[\s.\-]+", "_", name.strip().lower())


def is_header(first: Sequence[str], rest: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names columns.

    It does if it names a source, a target and a time, or if nothing in it is a number or a date
    and it names a source and a target or a column below it holds numbers or dates only.
    """
    simple = {plain(name) for name in first}
    known = [bool(simple & set(NAMES[role])) for role in ("src", "dst", "time")]
    if all(known):
        return True
    if any(is_value(name) for name in first):
        return False
    if known[0] and known[1]:
        return True
    columns = [[row[i] for row in rest if i < len(row)] for i in range(len(first))]
    return any(column and all(map(is_value, column)) for column in columns)


def is_value(text: str) -> bool:
    """Whether the text is a number or a date."""
    return bool(NUMBER.fullmatch(text.strip()) or DATE.fullmatch(text.strip()))


def spread_features(names: list[str], width: int) -> list[str]:
    """The header with a last name for many columns (JODIE) written out as f0, f1, ..."""
    if names and FEATURE_LIST.fullmatch(plain(names[-1])) and width != len(names):
        count = width - len(names) + 1
        return names[:-1] + [f"f{i}" for i in range(max(count, 0))]
    return names


def roles_by_name(
    source: str, names: Sequence[str], options: Mapping[str, Column | None], *, timed: bool = True
) -> Roles:
    """The roles of columns under a header.

    Raises:
        LogError: if source, target or time is not among the names or an option names no column.
    """
    found = _named(source, names, len(names), options)
    simple = [plain(name) for name in names]
    for role, known in NAMES.items():
        if role in found or (options.get(role) == "") or (role == "time" and not timed):
            continue
        places = [simple.index(n) for n in known if n in simple]
        free = [place for place in places if place not in found.values()]
        if free:
            found[role] = free[0]
    missing = [r for r in ("src", "dst", "time") if r not in found and (timed or r != "time")]
    if missing:
        raise LogError(
            f"{source}: no column is known as `{missing[0]}` among {', '.join(map(repr, names))}; "
            "name it with ",
            **{missing[0]: "COLUMN"},
        )
    order = {i: int(m[1]) for i, name in enumerate(simple) if (m := FEATURE.fullmatch(name))}
    features = tuple(sorted(order.keys() - set(found.values()), key=order.__getitem__))
    used = {*found.values(), *features}
    unused = [name for i, name in enumerate(names) if i not in used and name.strip()]
    apart = simple[found["src"]] in USERS and simple[found["dst"]] in ITEMS
    return Roles(
        found["src"],
        found["dst"],
        found.get("time"),
        found.get("kind"),
        found.get("weight"),
        found.get("label"),
        features if timed else (),
        apart,
        (f"columns not used: {', '.join(unused)}",) if unused and timed else (),
    )


def roles_by_content(
    source: str, sample: Sequence[Sequence[str]], options: Mapping[str, Column | None]
) -> Roles:
    """The roles of columns without a header, judged by a sample of the first rows.

    Time is the only column of numbers or dates, if there is one.  Otherwise it is the last or the
    third column, whichever has more evidence: dates, then epoch-sized numbers (median of at least
    10^8), then numbers that never decrease.  It is the first column if that one rises, neither
    last nor third has evidence, and the columns beside it are texts or all smaller.  Source and
    target are the first two columns that are left; then one of numbers is the weight and one of
    texts the kind.

    Raises:
        LogError: if that does not decide which column is the time.
    """
    width = max(map(len, sample), default=0)
    columns = [_Column([r[i] for r in sample if i < len(r)]) for i in range(width)]
    found = _named(source, None, width, options)
    if "time" not in found:
        taken = set(found.values())
        found["time"] = _time_place(source, columns, taken)
    free = [i for i in range(width) if i not in found.values()]
    for role in ("src", "dst"):
        if role not in found:
            if not free:
                raise LogError(f"{source}: no column is left for `{role}`: it has {width} columns")
            found[role] = free.pop(0)
    for role, is_text in (("weight", False), ("kind", True)):
        fitting = [i for i in free if (columns[i].sort == "text") == is_text]
        if len(fitting) == 1 and role not in found and options.get(role) != "":
            found[role] = fitting[0]
            free.remove(fitting[0])
    said = ", ".join(f"{role} {place}" for role, place in sorted(found.items(), key=_place))
    notes = [f"no header: columns from 0 are taken as {said}"]
    if free:
        notes.append(f"columns not used: {', '.join(map(str, free))}")
    return Roles(
        found["src"],
        found["dst"],
        found["time"],
        found.get("kind"),
        found.get("weight"),
        found.get("label"),
        notes=tuple(notes),
    )


def roles_of_links(
    source: str, names: Sequence[str] | None, options: Mapping[str, Column | None]
) -> Roles:
    """The roles of columns of links: by name, or without a header the first two columns."""
    if names is not None:
        return roles_by_name(source, names, options, timed=False)
    found = _named(source, None, 2, options)
    free = iter(place for place in (0, 1) if place not in found.values())
    src, dst = (found[r] if r in found else next(free) for r in ("src", "dst"))
    return Roles(src, dst, None)


def _place(item: tuple[str, int]) -> int:
    return item[1]


def _named(
    source: str, names: Sequence[str] | None, width: int, options: Mapping[str, Column | None]
) -> dict[str, int]:
    """The places of the columns that options name."""
    found: dict[str, int] = {}
    for role, column in options.items():
        if column is None or column == "":
            continue
        place = column
        if isinstance(column, str) and names is not None:
            exact = [i for i, name in enumerate(names) if name.strip() == column.strip()]
            loose = [i for i, name in enumerate(names) if plain(name) == plain(column)]
            place = (exact or loose or [-1])[0]
        elif isinstance(column, str):
            place = int(column) if column.isdecimal() else -1
        if not isinstance(place, int) or not 0 <= place < width:
            there = "no header; give a position from 0" if names is None else ", ".join(names)
            raise LogError(
                f"{source}: `{role}` names no column: got {column!r}, the file has {width} "
                f"columns ({there})"
            )
        if place in found.values():
            raise LogError(f"{source}: `{role}` names a column that another option names too")
        found[role] = place
    return found


class _Column:
    """What a column without a name holds."""

    def __init__(self, values: Sequence[str]) -> None:
        texts = [value.strip() for value in values]
        if texts and all(DATE.fullmatch(text) for text in texts):
            self.sort, keys = "date", texts
            self.rises = keys == sorted(keys) and keys[0] < keys[-1]
            self.evidence, self.top = 4, float("inf")
            return
        good = [float(text) for text in texts if NUMBER.fullmatch(text)]
        if 2 * len(good) <= len(texts):
            self.sort, self.rises, self.evidence, self.top = "text", False, 0, 0.0
            return
        is_sorted = all(a <= b for a, b in pairwise(good))
        self.sort, self.rises = "number", is_sorted and good[0] < good[-1]
        self.top = max(good)
        large = sorted(map(abs, good))[len(good) // 2] >= EPOCH
        self.evidence = 3 if large else 2 if self.rises else int(is_sorted)


def _time_place(source: str, columns: Sequence[_Column], taken: set[int]) -> int:
    width = len(columns)
    able = [i for i in range(width) if i not in taken and columns[i].sort != "text"]
    if len(able) == 1:
        return able[0]
    late = sorted({i for i in (2, width - 1) if i in able}, key=lambda i: -columns[i].evidence)
    best = late[0] if late and columns[late[0]].evidence else None
    tied = len(late) > 1 and columns[late[0]].evidence == columns[late[1]].evidence
    rest = [column for i, column in enumerate(columns) if i != 0 and column.sort == "number"]
    names = width > 2 and columns[1].sort == columns[2].sort == "text"
    first = 0 in able and columns[0].rises
    first = first and (best is None or columns[0].evidence >= columns[best].evidence)
    first = first and (names or all(columns[0].top > column.top for column in rest))
    if best is not None and not tied and not first:
        return best
    if first and best is None:
        return 0
    if first and columns[0].evidence >= 3 and all(columns[i].evidence < 2 for i in late):
        return 0
    raise LogError(
        f"{source}: without a header it is not clear which of the {width} columns is the time; "
        "name them by position from 0, for example ",
        src="0",
        dst="1",
        time=str(width - 1),
    )
