"""Tables with answers in files: what can be written, and what is said before anything is asked."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.config.errors import UserError
from pipelines.inference.tables import check_output, read_table, write_table


def test_what_cannot_be_written_is_said_before_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"/proc/out\.csv cannot be written"):
        write_table(Path("/proc/out.csv"), {"text": ["a"]})
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # a superuser may
    with pytest.raises(UserError, match="cannot be written; name a file in a folder"):
        check_output(tmp_path / "out.csv", {})


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_two_columns_of_one_name_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        path.write_text("text,note,note,,\nhello,keep me,other,,\n")
    else:
        columns = [pa.array(["hello"]), pa.array(["keep me"]), pa.array(["other"])]
        pq.write_table(pa.Table.from_arrays(columns, ["text", "note", "note"]), path)
    with pytest.raises(UserError, match="has two columns 'note'; rename or remove one"):
        read_table(str(path))
