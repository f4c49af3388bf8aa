"""Columns in files of Arrow's kinds that are cut or corrupt."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.config.errors import UserError


@contextmanager
def whole_file(path: str, kind: str = "Parquet") -> Iterator[None]:
    """Say in a UserError that the file cannot be read to its end, whatever Arrow calls it."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise  # of the disk or the network: Arrow's own have neither a kind nor a number
        raise UserError(f"{path} is not a whole {kind} file ({error}); fetch it again") from error
