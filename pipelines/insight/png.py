"""A figure as the bytes of a PNG: the one way in which pictures are written."""

import io

from matplotlib.figure import Figure

_DOTS_PER_INCH = 110


def png_of(figure: Figure) -> bytes:
    """The figure as a PNG, drawn without a display."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DOTS_PER_INCH)
    return stream.getvalue()
