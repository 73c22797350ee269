"""Rows moved in plain torch.

Legend: N rows, M indices, D columns.
"""

from __future__ import annotations

import torch
from torch import Tensor


def move(
    tables: tuple[Tensor, ...],
    at_M: Tensor | None,
    shift: int,
    out_ND: Tensor,
    target_M: Tensor | None,
    add: bool,
) -> None:
    """out[target[m]] = the row at[m] of the tables, or += with ``add``; None: m itself.

    ``at`` >> shift is the table (all is table 0 when shift is 0), the bits below are the row.
    Targets come once each. Converts by way of the wider of float32 and the dtype of out.
    """
    wide = torch.promote_types(out_ND.dtype, torch.float32)
    if at_M is None:
        rows = tables[0]
    elif shift == 0:
        rows = tables[0][at_M.long().to(tables[0].device)]
    else:
        table, row = at_M.long() >> shift, at_M.long() & ((1 << shift) - 1)
        starts = torch.tensor([0, *(t.shape[0] for t in tables[:-1])], device=at_M.device)
        joined = torch.cat([t.to(at_M.device) for t in tables])
        rows = joined[starts.cumsum(0)[table] + row]
    rows = rows.to(out_ND.device)
    target = slice(None) if target_M is None else target_M.long().to(out_ND.device)
    if add:
        rows = out_ND[target].to(wide) + rows.to(wide)
    out_ND[target] = rows.to(out_ND.dtype)
