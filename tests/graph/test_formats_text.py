"""Tables of edges: text, CSV, Parquet; and how a format is found."""

from __future__ import annotations

import builtins
import gzip

import numpy as np
import pytest

from tests.graph.reading import ENDS, PAIRS, RNG, WANT, WEIGHT, WEIGHTED, E, V, lines, read
from tests.graph.same import assert_same
from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph.csr import from_edges
from tiergnn.graph.formats.fields import split
from tiergnn.graph.formats.known import FORMATS, sniff
from tiergnn.graph.formats.lines import LineFile
from tiergnn.graph.ids import NodeIds


class TestText:
    @pytest.mark.parametrize("name", ["g.txt", "g.txt.gz", "g", "g.edges"])
    @pytest.mark.parametrize(
        "text",
        [
            lines("{} {}\n"),
            lines("{}\t{}\n"),
            lines("  {}   \t {}  \n"),
            lines("{} {}\r\n"),
            lines("{},{}\n"),
            lines("{};{}\n"),
            lines("{}|{}\n"),
            lines("+{} 0{}\n"),
            "# Directed graph\n# From To\n\n" + lines("{}\t{}\n"),
            "% konect\n" + lines("{} {}\n") + "\n# end\n\n",
            "\ufeff" + lines("{} {}\n"),
            lines("{} {}\n").rstrip("\n"),
            "source target\n" + lines("{} {}\n"),
        ],
        ids=lambda text: repr(text[:12]),
    )
    def test_shapes_of_text(self, tmp_path, name, text):
        assert_same(read(tmp_path, name, text), WANT)

    def test_a_long_comment_before_the_data(self, tmp_path):
        assert_same(read(tmp_path, "g.txt", "# x\n" * 60_000 + lines("{} {}\n")), WANT)

    def test_third_column_is_the_weight(self, tmp_path):
        text = lines("{} {} {!r}\n", *ENDS, WEIGHT.tolist())
        assert_same(read(tmp_path, "g.txt", text), WEIGHTED)
        assert_same(read(tmp_path, "g.txt", text, weight="none"), WANT)

    def test_columns_by_position(self, tmp_path):
        text = lines("{} {!r} {} 7 {}\n", PAIRS[:, 1], WEIGHT.tolist(), PAIRS[:, 0], range(E))
        got = read(tmp_path, "g.txt", text, source=2, target=0, weight=1, edge_features=[3, "4"])
        attr = np.stack([np.full(E, 7), np.arange(E)], axis=1).astype(np.float32)
        assert_same(got, from_edges(*ENDS, V, edge_weight=WEIGHT, edge_attr=attr))
        with pytest.raises(GraphError, match="5 columns and no header: what are column 3"):
            read(tmp_path, "g.txt", text, source=2, target=0, weight=1)

    def test_no_edges(self, tmp_path):
        for text in ("", "\n\n", "# nothing\n"):
            graph = read(tmp_path, "g.txt", text, num_nodes=3)
            assert (graph.num_nodes, graph.num_edges) == (3, 0)
            assert read(tmp_path, "g.txt", text, num_nodes=None).num_nodes == 0

    def test_names(self, tmp_path):
        got = read(tmp_path, "g.txt", "bob \u00e5sa\n\u00e5sa Zoe\nZoe bob\n", num_nodes=None)
        want = from_edges(
            np.array([1, 2, 0]), np.array([2, 0, 1]), 3,
            node_ids=NodeIds.from_names(["Zoe", "bob", "\u00e5sa"]),
        )  # fmt: skip
        assert_same(got, want)
        numbers = read(tmp_path, "g.txt", "10 9\n9 100\n", num_nodes=None, ids="names")
        assert numbers.node_ids.names().tolist() == ["10", "100", "9"]


class TestCsv:
    def test_columns_by_name(self, tmp_path):
        for head, text in {
            "src,dst": lines("{},{}\n"),
            "Source,Target": lines("{},{}\n"),
            "to,from": lines("{1},{0}\n"),
            "a,dst,src": lines("1,{1},{0}\n"),
            '"src","dst"': lines('"{}" , "{}"\n'),
            "\ufeffu,v": lines("{},{}\n"),
        }.items():
            assert_same(read(tmp_path, "g.csv", f"{head}\n{text}"), WANT)
            assert_same(read(tmp_path, "g.csv.gz", f"{head}\n{text}"), WANT)
        assert_same(read(tmp_path, "g.tsv", "src\tdst\n" + lines("{}\t{}\n")), WANT)
        assert_same(read(tmp_path, "g.csv", "# made by x\nsrc;dst\n" + lines("{};{}\n")), WANT)

    def test_without_header_the_first_two(self, tmp_path):
        assert_same(read(tmp_path, "g.csv", lines("{},{}\n")), WANT)
        text = "p,q\n" + lines("{},{}\n")
        assert_same(read(tmp_path, "g.csv", text), WANT)

    def test_names_need_a_word_about_the_header(self, tmp_path):
        with pytest.raises(GraphError, match="is 'ann,bob' a header, or the first row"):
            read(tmp_path, "g.csv", "ann,bob\nbob,cid\n", num_nodes=None)
        got = read(tmp_path, "g.csv", "ann,bob\nbob,cid\n", num_nodes=None, header=False)
        assert got.num_edges == 2
        got = read(tmp_path, "g.csv", "ann,bob\nbob,cid\n", num_nodes=None, header=True)
        assert got.node_ids.names().tolist() == ["bob", "cid"]

    def test_weight_and_features(self, tmp_path, caplog):
        text = "src,dst,weight,when,kind\n" + lines(
            "{},{},{!r},{},x\n", *ENDS, WEIGHT.tolist(), range(E)
        )
        got = read(tmp_path, "g.csv", text, edge_features="when")
        attr = np.arange(E, dtype=np.float32)
        assert_same(got, from_edges(*ENDS, V, edge_weight=WEIGHT, edge_attr=attr))
        assert "not read: kind" in caplog.text
        small = read(tmp_path, "g.csv", text, edge_features=["when"], edge_feature_dtype="uint8")
        assert small.edge_attr.dtype == "uint8"

    def test_quotes(self, tmp_path):
        text = 'src,dst\n"a, b","say ""hi"""\n"say ""hi""",c\n'
        got = read(tmp_path, "g.csv", text, num_nodes=None)
        assert got.node_ids.names().tolist() == ["a, b", "c", 'say "hi"']

    def test_header_alone(self, tmp_path):
        for text in ("src,dst\n", "src,dst"):
            assert read(tmp_path, "g.csv", text, num_nodes=2).num_edges == 0


class TestParquet:
    def write(self, tmp_path, groups: int = 7, **columns) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(columns), tmp_path / "g.parquet", row_group_size=groups)

    @pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64, np.uint64])
    def test_ids(self, tmp_path, dtype):
        self.write(tmp_path, dst=PAIRS[:, 1].astype(dtype), src=PAIRS[:, 0].astype(dtype))
        assert_same(read(tmp_path, "g.parquet"), WANT)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
    def test_weight(self, tmp_path, dtype):
        weight = (WEIGHT * 100).astype(dtype)
        self.write(tmp_path, a=PAIRS[:, 0], b=PAIRS[:, 1], weight=weight, t=WEIGHT)
        got = read(tmp_path, "g.parquet", edge_features="t")
        assert_same(got, from_edges(*ENDS, V, edge_weight=weight, edge_attr=WEIGHT))

    def test_names(self, tmp_path):
        import pyarrow as pa

        names = np.array([f"n{i:02d}" for i in range(V)])
        used, dense = np.unique(PAIRS, return_inverse=True)
        dense = dense.reshape(PAIRS.shape)
        want = from_edges(
            dense[:, 0], dense[:, 1], used.size, node_ids=NodeIds.from_names(names[used].tolist())
        )
        for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
            columns = [pa.array(names[PAIRS[:, c]].tolist()).cast(kind) for c in (0, 1)]
            self.write(tmp_path, src=columns[0], dst=columns[1])
            assert_same(read(tmp_path, "g.parquet", num_nodes=None), want)

    def test_missing_values(self, tmp_path):
        self.write(tmp_path, src=[0, None], dst=[1, 1])
        with pytest.raises(GraphError, match="source id is missing") as caught:
            read(tmp_path, "g.parquet")
        assert str(caught.value.culprit).endswith("row 1")

    def test_other_types(self, tmp_path):
        self.write(tmp_path, src=[0.5, 1.0], dst=[1, 1])
        with pytest.raises(GraphError, match="needs whole numbers, column 'src' is double"):
            read(tmp_path, "g.parquet", ids="dense")

    def test_damage(self, tmp_path):
        self.write(tmp_path, src=[0, 1], dst=[1, 1])
        data = (tmp_path / "g.parquet").read_bytes()
        with pytest.raises(GraphError, match="not a whole Parquet file"):
            read(tmp_path, "g.parquet", data[:-9])

    def test_pyarrow_is_optional(self, tmp_path, monkeypatch):
        self.write(tmp_path, src=[0, 1], dst=[1, 1])
        real = builtins.__import__

        def without(name, *args, **kwargs):
            if name.startswith("pyarrow"):
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(ConfigError, match="needs pyarrow") as caught:
            read(tmp_path, "g.parquet")
        assert caught.value.hint == "pip install 'tiergnn[parquet]'"


def test_what_is_no_graph(tmp_path):
    (tmp_path / "x.bin").write_bytes(bytes(range(256)) * 10)
    with pytest.raises(GraphError, match="no graph in a known format") as caught:
        read(tmp_path, "x.bin")
    for name in FORMATS:
        assert name in caught.value.hint
    WANT.save(tmp_path / "done")
    with pytest.raises(ConfigError, match="a graph folder already"):
        read(tmp_path, "done")


def test_the_format_may_be_said(tmp_path):
    (tmp_path / "edges.csv").write_text(lines("{}\t{}\n"))
    assert sniff(tmp_path / "edges.csv") == "csv"
    assert_same(read(tmp_path, "edges.csv", format="edge_list"), WANT)
    with pytest.raises(ConfigError, match="unknown format") as caught:
        read(tmp_path, "edges.csv", format="edgelist")
    assert "'edge_list', or one of" in caught.value.hint


def test_whole_numbers_to_the_ends_of_64_bits(tmp_path):
    ends = [-(2**63), 2**63 - 1, 0, -1]
    data = np.frombuffer(bytearray("".join(f"{end}\n" for end in ends).encode()), np.uint8)
    assert split(tmp_path, data, 1, separator=None, columns=(0,)).ints(0, "id").tolist() == ends


def test_numbers_are_rounded_as_python_does(tmp_path):
    values = RNG.normal(size=3000) * 10.0 ** RNG.integers(-320, 300, 3000)
    words = [repr(v) for v in values.tolist()]
    words += [f"{v:.4f}" for v in RNG.random(500)] + [f"{v:.40e}" for v in values[:500]]
    words += [".5", "5.", "-0", "+1e3", "1E-3", "4.9e-324", "1e400", "00000000000000000000000.25"]
    words += ["9007199254740993", "123456789012345678901234567890", "0." + "0" * 400 + "1"]
    words += ["nan", "-inf", "Infinity"]
    data = np.frombuffer(bytearray("\n".join(words).encode() + b"\n"), np.uint8)
    got = split(tmp_path, data, 1, separator=None, columns=(0,)).floats(0, "x")
    want = np.array([float(word) for word in words])
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got[:-3]), np.signbit(want[:-3]))


@pytest.mark.parametrize("gz", [False, True])
def test_blocks_are_whole_lines_from_anywhere(tmp_path, gz):
    text = b"\xef\xbb\xbfab c\nd\r\n\n" + b"x" * 100 + b"\nend"
    path = tmp_path / "t"
    path.write_bytes(gzip.compress(text) if gz else text)
    for size in (1, 3, 7, 64, 1000):
        blocks = list(LineFile(path).blocks(size))
        whole = [block.data.tobytes() for block in blocks]
        assert b"".join(whole) == text[3:] + b"\n"
        assert all(data.endswith(b"\n") for data in whole)
        assert [b.first_line for b in blocks[1:]] == [b.end_line for b in blocks[:-1]]
        assert blocks[-1].end_line == 6
        for k, block in enumerate(blocks):
            rest = LineFile(path).blocks(2 * size, block.end, block.end_line)
            assert b"".join(b.data.tobytes() for b in rest) == b"".join(whole[k + 1 :])
