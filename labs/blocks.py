"""The KV block pool and the block tables: which blocks of KV memory each sequence holds.

Source: vLLM, v1/core/block_pool.py and kv_cache_manager.py, with prefix caching off.
"""
from __future__ import annotations

from collections import deque

MOST_BLOCKS = 10_000_000


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold the keys and values of `tokens` tokens: the last one may be part empty."""
    return -(-tokens // block_size)


class BlockPool:
    """`num_gpu_blocks` blocks of `block_size` tokens. Block 0 is the null block: never given to a sequence.

    `tables[request_id]` lists the blocks that a sequence holds, in the order of its tokens.
    """

    def __init__(self, num_gpu_blocks: int, block_size: int) -> None:
        if not 2 <= num_gpu_blocks <= MOST_BLOCKS or block_size < 1:
            raise ValueError(f"a pool needs from 2 (one is the null block) to {MOST_BLOCKS:,} blocks of at least 1 "
                             f"token each, got {num_gpu_blocks} of {block_size}")
        self.num_gpu_blocks, self.block_size = num_gpu_blocks, block_size
        self.tables: dict[str, list[int]] = {}
        self._free = deque(range(1, num_gpu_blocks))

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks in use, as in vllm:kv_cache_usage_perc; the null block does not count."""
        return 1 - self.free / (self.num_gpu_blocks - 1)

    def missing(self, request_id: str, tokens: int) -> int:
        """Blocks to add so that `request_id` holds `tokens` tokens."""
        return max(0, blocks_for(tokens, self.block_size) - len(self.tables.get(request_id, ())))

    def grow(self, request_id: str, tokens: int) -> bool:
        """Give `request_id` the blocks that it misses for `tokens` tokens: all of them, or none and False."""
        missing = self.missing(request_id, tokens)
        if missing > self.free:
            return False
        table = self.tables.setdefault(request_id, [])
        table.extend(self._free.popleft() for _ in range(missing))
        return True

    def release(self, request_id: str) -> None:
        """Take back every block of `request_id`, to the front of the free ones: its last block is reused first."""
        self._free.extendleft(self.tables.pop(request_id, ()))
