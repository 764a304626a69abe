"""Split-K tables: whatever rows are encoded, the stored form gives back, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from export import export_tables
from mmaemu.bindings.algoconfig import AlgoConfig
from mmaemu.gemm.problem import GemmProblem
from mmaemu.profiles.envelope import Envelope, Inference, Setting
from mmaemu.profiles.table import SIZE_BITS, DecisionTable

LARGEST = (1 << SIZE_BITS) - 1
SETTINGS = [
    Setting(a, b, out, fast)
    for a, b in (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"))
    for out in ("float32", "bfloat16", "float8_e5m2")
    for fast in (False, True)
]
ABOUT = export_tables.About(
    platform={"gpu": "NVIDIA Test 1", "cublaslt": "1.2.3"},
    scheme_by_option={0: "serial", 1: "pairwise"},
    scheme_of_unlisted="contiguous",
    replayed=frozenset(),
    ragged_K_verified=True,
    envelope=Envelope(None, {}, {}, None),
)
ORIGIN = {"attribution": "Somebody", "licence": "Apache-2.0", "origin": "a test", "sha256": {}}

sizes = st.integers(1, 40) | st.integers(1, LARGEST) | st.just(LARGEST)
numbers = st.integers(0, 3) | st.integers(0, (1 << 16) - 1)
keys = st.tuples(
    st.sampled_from([0, 1 << 20, 32 << 20]), st.sampled_from(SETTINGS), sizes, sizes, sizes
)
decisions = st.builds(AlgoConfig, st.integers(1, (1 << 16) - 1), numbers, numbers, numbers)
recordings = st.dictionaries(keys, decisions, min_size=1, max_size=30)


def rows_of(recording: dict[Any, AlgoConfig]) -> export_tables.Rows:
    names = tuple({setting for _, setting, *_ in recording})
    values = [
        [workspace, names.index(setting), *shape, *config]
        for (workspace, setting, *shape), config in recording.items()
    ]
    return export_tables.Rows(names, np.array(values, dtype=np.int64))


def stored(
    folder: Path, recording: dict[Any, AlgoConfig], about: export_tables.About = ABOUT
) -> DecisionTable:
    rows = export_tables.merge([rows_of(recording)])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in export_tables.table_files(rows, about, [ORIGIN]).items():
        (folder / name).write_bytes(content)
    return DecisionTable(folder)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recordings)
def test_every_row_comes_back(tmp_path: Path, recording: dict[Any, AlgoConfig]) -> None:
    table = stored(tmp_path, recording)
    decoded = export_tables.decode(table)
    expected = export_tables.merge([rows_of(recording)])
    assert decoded.settings == expected.settings
    assert np.array_equal(decoded.values, expected.values)
    for (workspace, setting, *shape), config in recording.items():
        assert table.find(GemmProblem(*shape, *setting), workspace) == config
    assert table.rows == len(recording)
    assert table.split_rows == sum(config.num_splits_k > 1 for config in recording.values())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recordings, st.lists(st.tuples(keys, st.integers(1, 1 << 70)), max_size=8))
def test_nothing_else_is_found(
    tmp_path: Path, recording: dict[Any, AlgoConfig], others: list[Any]
) -> None:
    table = stored(tmp_path, recording)
    asked = [key for key, _ in others]
    # A size beyond the stored range must not be mistaken for another shape.
    asked += [(*key[:2], key[2] + huge, *key[3:]) for key, huge in others]
    asked += [(*key[:3], key[3] + (huge << SIZE_BITS), key[4]) for key, huge in others]
    for key, _ in list(recording.items()):
        asked += [(*key[:4], key[4] + LARGEST + 1), (*key[:3], 0, key[4])]
    for key in asked:
        workspace, setting, *shape = key
        answer = table.find(GemmProblem(*shape, *setting), workspace)
        assert answer == recording[key] if key in recording else isinstance(answer, str)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recordings, st.integers(1, 4))
def test_a_margin_envelope_never_contradicts_a_row(
    tmp_path: Path, recording: dict[Any, AlgoConfig], margin: int
) -> None:
    about = replace(ABOUT, envelope=Envelope(None, {}, {}, margin))
    table = stored(tmp_path, recording, about)
    for (workspace, setting, M, N, K), config in recording.items():
        inferred = table.envelope.infer(GemmProblem(M, N, K, *setting), workspace)
        assert config.num_splits_k == 1 or isinstance(inferred, str)
    for workspace, setting in {key[:2] for key in recording}:
        areas = [
            key[2] * key[3]
            for key, config in recording.items()
            if key[:2] == (workspace, setting) and config.num_splits_k > 1
        ]
        bound = margin * max(areas, default=0)
        at, above = (GemmProblem(area, 1, 7, *setting) for area in (bound, bound + 1))
        assert isinstance(table.envelope.infer(at, workspace), str)
        assert isinstance(table.envelope.infer(above, workspace), Inference)


@settings(max_examples=30)
@given(recordings, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_no_byte(recording: dict[Any, AlgoConfig], random: Any) -> None:
    shuffled = list(recording.items())
    random.shuffle(shuffled)
    contents = [
        export_tables.table_files(export_tables.merge(parts), ABOUT, [ORIGIN])
        for parts in (
            [rows_of(recording)],
            [rows_of(dict(shuffled))],
            [rows_of(dict(shuffled[: len(shuffled) // 2 + 1])), rows_of(recording)],
        )
    ]
    assert contents[0] == contents[1] == contents[2]


def test_two_decisions_for_one_key_are_refused() -> None:
    key = (0, SETTINGS[0], 1, 2, 3)
    parts = [rows_of({key: AlgoConfig(S, 0, 0, 0)}) for S in (1, 2)]
    with pytest.raises(export_tables.SourceError, match=r"M, N, K = \[1, 2, 3\]"):
        export_tables.merge(parts)


@pytest.mark.parametrize("shape", [(0, 1, 1), (1, LARGEST + 1, 1)])
def test_a_size_that_does_not_fit_is_refused(shape: tuple[int, int, int]) -> None:
    rows = rows_of({(0, SETTINGS[0], *shape): AlgoConfig(1, 0, 0, 0)})
    with pytest.raises(export_tables.SourceError, match="sizes must lie in"):
        export_tables.encode(rows)


@pytest.mark.parametrize("config", [AlgoConfig(1, -1, 0, 0), AlgoConfig(1, 0, 0, 1 << 16)])
def test_a_decision_that_does_not_fit_is_refused(config: AlgoConfig) -> None:
    rows = rows_of({(0, SETTINGS[0], 1, 1, 1): config})
    with pytest.raises(export_tables.SourceError, match="numbers of a decision must lie in"):
        export_tables.encode(rows)
