"""Scalar programs as textbooks have them, each with what makes its arguments: test_loops_textbook.py compares them with Python."""

import math

import numpy as np
import test_loops_programs

R = np.random.default_rng(5)
PROGRAMS = {}


def program(make):
    def register(f):
        PROGRAMS[f.__name__] = (f, make)
        return f

    return register


@program(lambda: (R.integers(1, 1000, 24),))
def huffman_lengths(freq):
    n = len(freq)
    weight = np.zeros(2 * n - 1, np.int64)
    parent = np.full(2 * n - 1, -1)
    alive = np.zeros(2 * n - 1, np.bool_)
    for i in range(n):
        weight[i] = freq[i]
        alive[i] = True
    for k in range(n, 2 * n - 1):
        a = b = -1
        for i in range(k):
            if alive[i]:
                if a < 0 or weight[i] < weight[a]:
                    b = a
                    a = i
                elif b < 0 or weight[i] < weight[b]:
                    b = i
        alive[a] = alive[b] = False
        parent[a] = parent[b] = k
        weight[k] = weight[a] + weight[b]
        alive[k] = True
    lengths = np.zeros(n, np.int64)
    for i in range(n):
        j = i
        while parent[j] >= 0:
            j = parent[j]
            lengths[i] += 1
    return lengths


def _sudoku():
    s = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
    return (np.array([int(c) for c in s], np.int8).reshape(9, 9),)


@program(_sudoku)
def sudoku(grid):
    empty = np.zeros((81, 2), np.int64)
    n = 0
    for i in range(9):
        for j in range(9):
            if grid[i, j] == 0:
                empty[n, 0] = i
                empty[n, 1] = j
                n += 1
    k = 0
    tries = 0
    while 0 <= k < n:
        r, c = empty[k, 0], empty[k, 1]
        d = grid[r, c] + 1
        grid[r, c] = 0
        found = False
        while d <= 9 and not found:
            tries += 1
            good = True
            for t in range(9):
                if (
                    grid[r, t] == d
                    or grid[t, c] == d
                    or grid[3 * (r // 3) + t // 3, 3 * (c // 3) + t % 3] == d
                ):
                    good = False
                    break
            if good:
                found = True
            else:
                d += 1
        if found:
            grid[r, c] = d
            k += 1
        else:
            k -= 1
    return tries, grid


@program(lambda: (R.integers(0, 4, 40), R.integers(0, 4, 35)))
def lcs(a, b):
    n, m = len(a), len(b)
    table = np.zeros((n + 1, m + 1), np.int64)
    for i in range(n):
        for j in range(m):
            if a[i] == b[j]:
                table[i + 1, j + 1] = table[i, j] + 1
            else:
                table[i + 1, j + 1] = max(table[i, j + 1], table[i + 1, j])
    out = np.zeros(table[n, m], a.dtype)
    k = table[n, m]
    i, j = n, m
    while i > 0 and j > 0:
        if a[i - 1] == b[j - 1]:
            k -= 1
            out[k] = a[i - 1]
            i -= 1
            j -= 1
        elif table[i - 1, j] >= table[i, j - 1]:
            i -= 1
        else:
            j -= 1
    return out


@program(lambda: (R.integers(0, 6, 30), R.integers(0, 6, 30)))
def damerau(a, b):
    n, m = len(a), len(b)
    d = np.zeros((n + 1, m + 1), np.int64)
    for i in range(n + 1):
        d[i, 0] = i
    for j in range(m + 1):
        d[0, j] = j
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            cost = 0 if a[i - 1] == b[j - 1] else 1
            best = d[i - 1, j] + 1
            if d[i, j - 1] + 1 < best:  # noqa: PLR1730
                best = d[i, j - 1] + 1
            if d[i - 1, j - 1] + cost < best:  # noqa: PLR1730
                best = d[i - 1, j - 1] + cost
            if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
                best = min(best, d[i - 2, j - 2] + 1)
            d[i, j] = best
    return d[n, m]


def _graph():
    w = R.random((40, 40)) * 10
    w[R.random((40, 40)) > 0.2] = np.inf
    return w, 0


@program(_graph)
def dijkstra(w, source):
    n = w.shape[0]
    dist = np.full(n, np.inf)
    done = np.zeros(n, np.bool_)
    dist[source] = 0.0
    for _ in range(n):
        u = -1
        for v in range(n):
            if not done[v] and (u < 0 or dist[v] < dist[u]):
                u = v
        if dist[u] == np.inf:
            break
        done[u] = True
        for v in range(n):
            if w[u, v] < np.inf and dist[u] + w[u, v] < dist[v]:
                dist[v] = dist[u] + w[u, v]
    return dist


@program(lambda: (200, R.integers(0, 200, (150, 2))))
def union_find(n, edges):
    parent = np.arange(n)
    size = np.ones(n, np.int64)
    groups = n
    for e in range(len(edges)):
        a, b = edges[e, 0], edges[e, 1]
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        while parent[b] != b:
            parent[b] = parent[parent[b]]
            b = parent[b]
        if a != b:
            if size[a] < size[b]:
                a, b = b, a
            parent[b] = a
            size[a] += size[b]
            groups -= 1
    return groups, parent


@program(lambda: (R.integers(0, 1 << 30, 500).astype(np.uint32),))
def radix_sort(x):
    n = len(x)
    other = np.empty_like(x)
    for shift in range(0, 32, 8):
        counts = np.zeros(257, np.int64)
        for i in range(n):
            counts[((x[i] >> shift) & 255) + 1] += 1
        for k in range(256):
            counts[k + 1] += counts[k]
        for i in range(n):
            d = (x[i] >> shift) & 255
            other[counts[d]] = x[i]
            counts[d] += 1
        x, other = other, x
    return x


@program(lambda: (16, 16, 20))
def newton_fractal(w, h, most):
    out = np.zeros((h, w), np.int32)
    for i in range(h):
        for j in range(w):
            z = complex(-2 + 4 * j / w, -2 + 4 * i / h)
            n = 0
            while n < most and z != 0:
                step = (z * z * z - 1) / (3 * z * z)
                z = z - step
                n += 1
                if abs(step) < 1e-6:
                    break
            out[i, j] = n
    return out


@program(lambda: (R.integers(0, 3, 300).astype(np.uint8), 64, 15))
def lz77(data, window, longest):
    n = len(data)
    out = np.zeros((n, 3), np.int32)
    count = 0
    i = 0
    while i < n:
        best, at = 0, 0
        for j in range(max(0, i - window), i):
            k = 0
            while k < longest and i + k < n - 1 and data[j + k] == data[i + k]:
                k += 1
            if k > best:
                best, at = k, i - j
        out[count, 0] = at
        out[count, 1] = best
        out[count, 2] = data[i + best]
        count += 1
        i += best + 1
    return out[:count]


program(lambda: (R.random(300),))(test_loops_programs.heap_sort)


@program(lambda: (np.zeros((40, 40), np.uint8), R.integers(0, 40, (60, 4))))
def bresenham(image, lines):
    for k in range(len(lines)):
        x0, y0, x1, y1 = lines[k]
        dx, dy = abs(x1 - x0), -abs(y1 - y0)
        sx = 1 if x0 < x1 else -1
        sy = 1 if y0 < y1 else -1
        err = dx + dy
        while True:
            image[y0, x0] = 255
            if x0 == x1 and y0 == y1:
                break
            e2 = 2 * err
            if e2 >= dy:
                err += dy
                x0 += sx
            if e2 <= dx:
                err += dx
                y0 += sy
    return image


@program(lambda: (300, 7))
def josephus(n, step):
    nxt = np.empty(n, np.int64)
    for i in range(n):
        nxt[i] = (i + 1) % n
    at = n - 1
    left = n
    while left > 1:
        for _ in range(step - 1):
            at = nxt[at]
        nxt[at] = nxt[nxt[at]]
        left -= 1
    return at


@program(lambda: (np.stack([R.permutation(16) for _ in range(60)]),))
def fifteen(boards):
    out = np.zeros(len(boards), np.int64)
    for b in range(len(boards)):
        h = 0
        for i in range(16):
            v = boards[b, i]
            if v:
                h += abs((v - 1) // 4 - i // 4) + abs((v - 1) % 4 - i % 4)
        # linear conflicts in rows
        for r in range(4):
            for i in range(4):
                v = boards[b, 4 * r + i]
                if v == 0 or (v - 1) // 4 != r:
                    continue
                for j in range(i + 1, 4):
                    u = boards[b, 4 * r + j]
                    if u and (u - 1) // 4 == r and u < v:
                        h += 2
        out[b] = h
    return out


@program(
    lambda: (
        R.integers(0, 256, 400).astype(np.uint8),
        np.frombuffer(
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
            np.uint8,
        ),
    )
)
def base64(data, alphabet):
    n = len(data)
    out = np.full((n + 2) // 3 * 4, 61, np.uint8)
    o = 0
    for i in range(0, n, 3):
        word = int(data[i]) << 16
        if i + 1 < n:
            word |= int(data[i + 1]) << 8
        if i + 2 < n:
            word |= int(data[i + 2])
        out[o] = alphabet[(word >> 18) & 63]
        out[o + 1] = alphabet[(word >> 12) & 63]
        if i + 1 < n:
            out[o + 2] = alphabet[(word >> 6) & 63]
        if i + 2 < n:
            out[o + 3] = alphabet[word & 63]
        o += 4
    return out


@program(lambda: (R.integers(0, 1 << 32, 200, dtype=np.uint32),))
def mix32(words):
    a, b, c = 0x67452301, 0xEFCDAB89, 0x98BADCFE
    for i in range(len(words)):
        w = int(words[i])
        a = (a + ((b & c) | (~b & w))) & 0xFFFFFFFF
        a = ((a << 7) | (a >> 25)) & 0xFFFFFFFF
        b = (b ^ (a * 0x9E3779B1)) & 0xFFFFFFFF
        c = ((c << 13 | c >> 19) + w) & 0xFFFFFFFF
    return a, b, c


@program(lambda: (R.integers(0, 1 << 32, 400, dtype=np.uint32),))
def xorshift_np(words):
    h = np.uint32(2166136261)
    out = np.empty_like(words)
    for i in range(len(words)):
        h ^= words[i]
        h ^= h << np.uint32(13)
        h ^= h >> np.uint32(17)
        h ^= h << np.uint32(5)
        out[i] = h
    return out


@program(lambda: (np.repeat(R.integers(0, 5, 90), R.integers(1, 8, 90)),))
def run_lengths(x):
    values = np.zeros(len(x), x.dtype)
    counts = np.zeros(len(x), np.int64)
    n = 0
    i = 0
    while i < len(x):
        j = i + 1
        while j < len(x) and x[j] == x[i]:
            j += 1
        values[n], counts[n] = x[i], j - i
        n += 1
        i = j
    return values[:n], counts[:n]


@program(lambda: (0.3, 0.1, 400, 0.05))
def sir(beta, gamma, steps, dt):
    s, i, r = 0.99, 0.01, 0.0
    out = np.empty((steps, 3))
    peak, when = 0.0, 0
    for t in range(steps):
        new = beta * s * i * dt
        gone = gamma * i * dt
        s -= new
        i += new - gone
        r += gone
        out[t, 0], out[t, 1], out[t, 2] = s, i, r
        if i > peak:
            peak, when = i, t
    return out, peak, when


@program(
    lambda: (
        np.where(R.random((16, 16)) < 0.5, 1, -1).astype(np.int8),
        R.integers(0, 16, (900, 2)),
        R.random(900),
        0.44,
    )
)
def ising(spin, places, u, beta):
    n, m = spin.shape
    energy = 0
    for k in range(len(places)):
        i, j = places[k, 0], places[k, 1]
        around = (
            int(spin[(i + 1) % n, j])
            + spin[i - 1, j]
            + spin[i, (j + 1) % m]
            + spin[i, j - 1]
        )
        change = 2 * int(spin[i, j]) * around
        if change <= 0 or u[k] < math.exp(-beta * change):
            spin[i, j] = -spin[i, j]
            energy += change
    return spin, energy


@program(lambda: (R.random((20, 20)) < 0.6,))
def percolation(opened):
    n, m = opened.shape
    label = np.zeros((n, m), np.int64)
    stack = np.zeros((n * m, 2), np.int64)
    current = 0
    for i in range(n):
        for j in range(m):
            if opened[i, j] and label[i, j] == 0:
                current += 1
                label[i, j] = current
                stack[0, 0], stack[0, 1] = i, j
                top = 1
                while top > 0:
                    top -= 1
                    a, b = stack[top, 0], stack[top, 1]
                    for d in range(4):
                        x = a + (1 if d == 0 else -1 if d == 1 else 0)
                        y = b + (1 if d == 2 else -1 if d == 3 else 0)
                        if (
                            0 <= x < n
                            and 0 <= y < m
                            and opened[x, y]
                            and label[x, y] == 0
                        ):
                            label[x, y] = current
                            stack[top, 0], stack[top, 1] = x, y
                            top += 1
    return label, current


@program(lambda: (R.random((63, 2)), R.random((40, 2))))
def kd_tree(points, queries):
    n = len(points)
    order = np.arange(n)
    # implicit tree: the middle of [lo, hi) is the node
    todo = np.zeros((64, 3), np.int64)
    todo[0, 0], todo[0, 1], todo[0, 2] = 0, n, 0
    top = 1
    while top > 0:
        top -= 1
        lo, hi, axis = todo[top, 0], todo[top, 1], todo[top, 2]
        if hi - lo < 2:
            continue
        for i in range(lo + 1, hi):  # insertion sort
            v = order[i]
            j = i
            while j > lo and points[order[j - 1], axis] > points[v, axis]:
                order[j] = order[j - 1]
                j -= 1
            order[j] = v
        mid = (lo + hi) // 2
        todo[top, 0], todo[top, 1], todo[top, 2] = lo, mid, 1 - axis
        todo[top + 1, 0], todo[top + 1, 1], todo[top + 1, 2] = mid + 1, hi, 1 - axis
        top += 2
    out = np.zeros(len(queries), np.int64)
    for q in range(len(queries)):
        best, at = np.inf, -1
        todo[0, 0], todo[0, 1], todo[0, 2] = 0, n, 0
        top = 1
        while top > 0:
            top -= 1
            lo, hi, axis = todo[top, 0], todo[top, 1], todo[top, 2]
            if lo >= hi:
                continue
            mid = (lo + hi) // 2
            p = order[mid]
            d = (points[p, 0] - queries[q, 0]) ** 2 + (
                points[p, 1] - queries[q, 1]
            ) ** 2
            if d < best:
                best, at = d, p
            diff = queries[q, axis] - points[p, axis]
            near_lo, near_hi, far_lo, far_hi = (
                (lo, mid, mid + 1, hi) if diff < 0 else (mid + 1, hi, lo, mid)
            )
            if diff * diff < best:
                todo[top, 0], todo[top, 1], todo[top, 2] = far_lo, far_hi, 1 - axis
                top += 1
            todo[top, 0], todo[top, 1], todo[top, 2] = near_lo, near_hi, 1 - axis
            top += 1
        out[q] = at
    return out


@program(lambda: (R.integers(0, 4, 40), R.integers(0, 4, 35)))
def smith_waterman(a, b):
    h = np.zeros((len(a) + 1, len(b) + 1), np.int64)
    best = 0
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            s = 3 if a[i - 1] == b[j - 1] else -3
            h[i, j] = max(0, h[i - 1, j - 1] + s, h[i - 1, j] - 2, h[i, j - 1] - 2)
            best = max(best, h[i, j])
    return best


@program(lambda: (R.random((20, 20)),))
def sobel(im):
    n, m = im.shape
    out = np.zeros((n, m))
    for i in range(1, n - 1):
        for j in range(1, m - 1):
            gx = (
                im[i - 1, j + 1]
                + 2 * im[i, j + 1]
                + im[i + 1, j + 1]
                - im[i - 1, j - 1]
                - 2 * im[i, j - 1]
                - im[i + 1, j - 1]
            )
            gy = (
                im[i + 1, j - 1]
                + 2 * im[i + 1, j]
                + im[i + 1, j + 1]
                - im[i - 1, j - 1]
                - 2 * im[i - 1, j]
                - im[i - 1, j + 1]
            )
            out[i, j] = math.sqrt(gx * gx + gy * gy)
    return out


@program(
    lambda: (
        np.log(R.dirichlet(np.ones(12), 12)),
        np.log(R.dirichlet(np.ones(8), 12)),
        np.log(np.ones(12) / 12),
        R.integers(0, 8, 30),
    )
)
def viterbi(trans, emit, start, seen):
    n, t = trans.shape[0], len(seen)
    score = np.zeros((t, n))
    back = np.zeros((t, n), np.int64)
    for s in range(n):
        score[0, s] = start[s] + emit[s, seen[0]]
    for k in range(1, t):
        for s in range(n):
            best, at = -np.inf, 0
            for p in range(n):
                v = score[k - 1, p] + trans[p, s]
                if v > best:
                    best, at = v, p
            score[k, s] = best + emit[s, seen[k]]
            back[k, s] = at
    path = np.zeros(t, np.int64)
    for s in range(n):
        if score[t - 1, s] > score[t - 1, path[t - 1]]:
            path[t - 1] = s
    for k in range(t - 1, 0, -1):
        path[k - 1] = back[k, path[k]]
    return path


@program(lambda: (R.integers(1, 50, 20), R.integers(1, 100, 20), 120))
def knapsack_2d(weights, values, capacity):
    n = len(weights)
    best = np.zeros((n + 1, capacity + 1), np.int64)
    for i in range(n):
        for c in range(capacity + 1):
            best[i + 1, c] = best[i, c]
            if weights[i] <= c and best[i, c - weights[i]] + values[i] > best[i + 1, c]:
                best[i + 1, c] = best[i, c - weights[i]] + values[i]
    taken = np.zeros(n, np.bool_)
    c = capacity
    for i in range(n - 1, -1, -1):
        if best[i + 1, c] != best[i, c]:
            taken[i] = True
            c -= weights[i]
    return best[n, capacity], taken
