"""Packing sequences whole into rows of one length."""

import numpy as np


def best_fit(lengths, size, seed):
    """Rows of at most `size` tokens: a list of lists of sequence numbers, each number in one row.

    Best fit decreasing: the longest sequence first, into the row that it fills up best ("Fewer Truncations Improve
    Language Modeling", arXiv 2404.10830). Which of equal length lie together is drawn by `seed`.

    `lengths`: int array, each from 1 to `size`.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(lengths))
    order = order[np.argsort(-lengths[order], kind="stable")]
    rows, with_room = [], [[] for _ in range(size + 1)]  # [r]: the numbers of the rows with room for r more tokens
    some = 0  # bit r: there is a row with room for r
    for sequence in order.tolist():
        length = int(lengths[sequence])
        fitting = some >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                some &= ~(1 << room)
        else:
            room, row = size, len(rows)
            rows.append([])
        rows[row].append(sequence)
        with_room[room - length].append(row)
        some |= 1 << (room - length)
    return rows
