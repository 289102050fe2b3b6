"""2:4 sparse matrices on the host: which numbers are kept, and metadata by the layout that `kd.wgmma` documents."""

from __future__ import annotations

from typing import Any

import numpy as np


def group_of(dtype: Any) -> int:
    return 2 if dtype.itemsize == 4 else 4


def pruned(a: Any, dtype: Any) -> Any:
    """The greatest half of each group; of equal magnitudes the first."""
    group = group_of(dtype)
    x = a.reshape(a.shape[0], -1, group).copy()
    order = np.argsort(-np.abs(x.astype(np.float64)), axis=-1, kind="stable")
    np.put_along_axis(x, order[..., group // 2 :], 0, -1)
    return x.reshape(a.shape)


def compressed(a: Any, dtype: Any) -> tuple[Any, Any]:
    """(values, metadata) of a matrix whose sizes are multiples of 64."""
    (M, K), group = a.shape, group_of(dtype)
    x = a.reshape(M, -1, group)
    order = np.argsort(-np.abs(x.astype(np.float64)), axis=-1, kind="stable")
    kept = np.sort(order[..., : group // 2], -1)
    values = np.take_along_axis(x, kept, -1).reshape(M, K // 2)
    nibbles = np.where(kept[..., 0], 14, 4) if group == 2 else kept[..., 0] + 4 * kept[..., 1]
    step = 16 * group
    meta = np.zeros((K // step, 2 * M), np.uint32)
    for j, word in np.ndindex(*meta.shape):
        i, lane = divmod(word, 128)
        w, g, t = lane // 32, lane % 32 // 4, lane % 4
        row, own = 64 * i + 16 * w + g, nibbles[:, 16 * j : 16 * (j + 1)]
        if dtype.itemsize == 1:
            bits = list(own[row + 8 * (t % 2), 8 * (t // 2) : 8 * (t // 2) + 8])
        else:
            bits = [*own[row, 4 * t : 4 * t + 4], *own[row + 8, 4 * t : 4 * t + 4]]
        meta[j, word] = sum(int(n) << 4 * place for place, n in enumerate(bits))
    return values, meta
