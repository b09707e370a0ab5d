"""The block pool as a grid: which sequence holds which block of KV memory."""

from __future__ import annotations

from collections.abc import Iterable

from labs.engine import StepRecord
from labs.svg.marks import FAINT, INK, box, on, path, text
from labs.svg.step.replay import Replay

LARGEST, SMALLEST = 24, 6  # pixels from one block to the next
NAMED, OUTLINED = 16, 8  # from this size on, a name fits, or an outline


class PoolGrid:
    """The grid of one run at one place; only the blocks' owners change from step to step."""

    def __init__(self, replay: Replay, x: float, y: float, width: float, height: float) -> None:
        self.replay, self.x, self.y = replay, x, y
        n = replay.config.num_gpu_blocks
        fits = [size for size in range(LARGEST, SMALLEST - 1, -1) if (width // size) * (height // size) >= n]
        self.pitch = fits[0] if fits else SMALLEST
        self.columns = int(width // self.pitch)
        self.per_cell = 1 if fits else -(-n // (self.columns * int(height // SMALLEST)))
        self.cells = -(-n // self.per_cell)
        self.size = self.pitch - (2 if self.pitch > 9 else 1)
        square = f"h{self.size}v{self.size}h-{self.size}z"
        self._squares = [f"M{cx:g} {cy:g}{square}" for cx, cy in map(self._corner, range(self.cells))]
        self._empty = "".join([path(self._lines(), FAINT), *self._null()])

    @property
    def bottom(self) -> float:
        """Where the grid ends."""
        return self.y + -(-self.cells // self.columns) * self.pitch

    def parts(self, record: StepRecord) -> list[str]:
        """The grid with the blocks that each sequence holds in its colour; those handed out in this step outlined."""
        owner: dict[int, str] = {}
        for request_id, table in record.tables.items():
            for block in table:
                owner.setdefault(block // self.per_cell, request_id)
        by_colour: dict[str, list[str]] = {}
        for cell, request_id in owner.items():
            by_colour.setdefault(self.replay.colours[request_id], []).append(self._squares[cell])
        filled = [f'<path d="{"".join(squares)}" fill="{colour}"/>' for colour, squares in by_colour.items()]
        return [self._empty, *filled, *self._outlines(record), *self._names(owner)]

    def key(self) -> str:
        """What a square stands for."""
        if self.per_cell > 1:
            return f"a square: {self.per_cell:,} blocks, by the first one held"
        return "crossed: null block" + ("; outlined: new" if self.pitch >= OUTLINED else "")

    def _lines(self) -> str:
        """Lines between the squares: far shorter than an outline of each, and sent with every step."""
        rows, rest = divmod(self.cells, self.columns)
        pitch, x, y = self.pitch, self.x - 1, self.y - 1
        across = [self.columns * pitch] * (rows + 1) if rows else [rest * pitch]
        across += [rest * pitch] if rest else []
        down = [(rows + (column <= rest and rest > 0)) * pitch for column in range(min(self.columns, self.cells) + 1)]
        return ("".join(f"M{x:g} {y + i * pitch:g}h{wide}" for i, wide in enumerate(across))
                + "".join(f"M{x + i * pitch:g} {y:g}v{high}" for i, high in enumerate(down)))

    def _corner(self, cell: int) -> tuple[float, float]:
        row, column = divmod(cell, self.columns)
        return self.x + column * self.pitch, self.y + row * self.pitch

    def _null(self) -> Iterable[str]:
        """Block 0, which no sequence is ever given."""
        if self.per_cell > 1:
            return
        x, y, size = self.x, self.y, self.size
        yield box(x, y, size, size, "#EDEDED")
        yield path(f"M{x:g} {y:g}l{size} {size}M{x + size:g} {y:g}l-{size} {size}", INK)

    def _outlines(self, record: StepRecord) -> list[str]:
        if self.pitch < OUTLINED or self.per_cell > 1:
            return []
        previous = self.replay.previous(record)
        held = previous.tables if previous else {}
        new = [block for i, table in record.tables.items() for block in _added(table, held.get(i, ()))]
        return [path("".join(self._squares[block] for block in new), INK, 1.6)] if new else []

    def _names(self, owner: dict[int, str]) -> list[str]:
        if self.pitch < NAMED or self.per_cell > 1:
            return []
        size, parts = min(14, self.size * 0.72), []
        for cell, request_id in owner.items():
            if len(request_id) <= 2:
                x, y = self._corner(cell)
                parts.append(text(x + self.size / 2, y + self.size / 2 + size * 0.36, request_id, size, "middle",
                                  on(self.replay.colours[request_id])))
        return parts


def _added(table: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    """Blocks at the end of a table that were not in it before; all of them if it was begun anew."""
    return table[len(before):] if table[:len(before)] == before else table
