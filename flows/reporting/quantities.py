"""Quantities as people read them."""


def duration(seconds: float) -> str:
    """`4.2 s`, `2 min 05 s`, `3 h 10 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def memory(num_bytes: float) -> str:
    """`1.25 GiB`, or `310 MiB` below one."""
    mebibytes = num_bytes / 2**20
    return f"{mebibytes / 1024:.2f} GiB" if mebibytes >= 1024 else f"{mebibytes:.0f} MiB"


def number(value: float) -> str:
    """`12,345`, `0.4213`; whole numbers stay whole."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
