"""Every store under the contract."""

from __future__ import annotations

import pytest
import torch

from tests.memory.contract import RowStoreContract
from tiergnn.memory.disk import DiskRows
from tiergnn.memory.engine import Engine
from tiergnn.memory.ram import RamRows
from tiergnn.memory.scratch import Scratch
from tiergnn.memory.slow import Slow


@pytest.fixture(scope="module")
def engine():
    engine = Engine(num_threads=2, slab_bytes=2**20)
    yield engine
    engine.close()


class _OnDisk(RowStoreContract):
    direct = True

    @pytest.fixture
    def make(self, tmp_path, engine):
        tables = []

        def make(num_rows: int, width: int, dtype: torch.dtype) -> DiskRows:
            path = tmp_path / f"{len(tables)}.rows"
            table = DiskRows.create(path, num_rows, width, dtype, engine=engine, direct=self.direct)
            tables.append(table)
            return table

        yield make
        for table in tables:
            table.close()
            assert not table.path.exists()


class TestDisk(_OnDisk):
    pass


class TestBufferedDisk(_OnDisk):
    direct = False


class TestRam(RowStoreContract):
    reads_once = False

    @pytest.fixture
    def make(self):
        return RamRows


class TestSlow(RowStoreContract):
    @pytest.fixture
    def make(self, tmp_path, engine):
        with Scratch(tmp_path, engine=engine) as scratch:
            made = []

            def make(num_rows: int, width: int, dtype: torch.dtype) -> Slow:
                made.append(scratch.table(f"t{len(made)}", num_rows, width, dtype))
                return Slow(made[-1], rate_Bps=1e9)

            yield make
