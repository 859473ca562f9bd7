"""Linear equations, by elimination with the largest pivot."""

from __future__ import annotations

from .arrays import FLOAT, asarray, ndarray


def solve(matrix, right):
    matrix, right = asarray(matrix, float), asarray(right, float)
    count, wide = matrix.shape[0], 1 if right.ndim == 1 else right.shape[1]
    rows = [matrix.data[at * count : (at + 1) * count] + right.data[at * wide : (at + 1) * wide] for at in range(count)]
    for place in range(count):
        best = max(range(place, count), key=lambda row: abs(rows[row][place]))
        rows[place], rows[best] = rows[best], rows[place]
        pivot = rows[place]
        for row in rows[place + 1 :]:
            factor = row[place] / pivot[place]
            if factor:
                for at in range(place, count + wide):
                    row[at] -= factor * pivot[at]
    found = [[0.0] * wide for _ in range(count)]
    for place in reversed(range(count)):
        row = rows[place]
        for column in range(wide):
            rest = row[count + column] - sum(row[at] * found[at][column] for at in range(place + 1, count))
            found[place][column] = rest / row[place]
    return ndarray([value for row in found for value in row], right.shape, FLOAT)
