"""Sizes rounded up, so that few of them are ever compiled for."""

LEAST_LENGTH = 64


def length_bucket(tokens: int) -> int:
    """At most a quarter more, in four steps between powers of two: 320, 384, 448, 512, 640, ..."""
    if tokens <= LEAST_LENGTH:
        return LEAST_LENGTH
    step = max(2 ** ((tokens - 1).bit_length() - 3), LEAST_LENGTH)
    return -(-tokens // step) * step


def rows_bucket(rows: int, most: int) -> int:
    """The largest batch so far, or a quarter, a sixteenth, ... of it: turns of a conversation have ever fewer rows."""
    size = max(most, rows)
    while size % 4 == 0 and size // 4 >= rows:
        size //= 4
    return size
