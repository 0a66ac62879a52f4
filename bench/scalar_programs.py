"""Programs that read and write numbers and elements one at a time: with those of loop_programs.py, `tools/dev bench loops` runs them.
tests/python/test_loops_compiled.py has them with small arguments."""

import math

import numpy as np


def running_sum(x):
    s = 0.0
    for i in range(len(x)):
        s = s + x[i] * 2.0
        x[i] = s
    return s


def crc16(poly, data):
    crc = 0xFFFF
    for b in data:
        cur = 0xFF & int(b)
        for _ in range(8):
            crc = (crc >> 1) ^ poly if (crc & 1) ^ (cur & 1) else crc >> 1
            cur >>= 1
    crc = ~crc & 0xFFFF
    return (crc << 8) & 0xFFFF | (crc >> 8) & 0xFF


def nussinov(n, seq):
    table = np.zeros((n, n), np.int32)
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            table[i, j] = max(table[i, j], table[i, j - 1])
            if i + 1 < n:
                table[i, j] = max(table[i, j], table[i + 1, j])
                if i < j - 1:
                    table[i, j] = max(
                        table[i, j], table[i + 1, j - 1] + (seq[i] + seq[j] == 3)
                    )
            for k in range(i + 1, j):
                table[i, j] = max(table[i, j], table[i, k] + table[k + 1, j])
    return table


def seidel(steps, a):
    n = a.shape[0]
    for t in range(steps):
        for i in range(1, n - 1):
            for j in range(1, n - 1):
                a[i, j] = (
                    a[i - 1, j - 1]
                    + a[i - 1, j]
                    + a[i - 1, j + 1]
                    + a[i, j - 1]
                    + a[i, j]
                    + a[i, j + 1]
                    + a[i + 1, j - 1]
                    + a[i + 1, j]
                    + a[i + 1, j + 1]
                ) / 9.0
    return a


def floyd_warshall(d):
    n = len(d)
    for k in range(n):
        for i in range(n):
            for j in range(n):
                d[i, j] = min(d[i, j], d[i, k] + d[k, j])
    return d


def edit_distance(a, b):
    d = np.zeros((len(a) + 1, len(b) + 1), np.int64)
    for i in range(len(a) + 1):
        d[i, 0] = i
    for j in range(len(b) + 1):
        d[0, j] = j
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            d[i, j] = min(
                d[i - 1, j] + 1,
                d[i, j - 1] + 1,
                d[i - 1, j - 1] + (a[i - 1] != b[j - 1]),
            )
    return d[len(a), len(b)]


def count_words(dna, k, counts):
    """How often each word of k of the four letters is there."""
    mask, word = (1 << (2 * k)) - 1, 0
    for i in range(len(dna)):
        c = dna[i]
        word = ((word << 2) | (0 if c == 65 else 1 if c == 67 else 2 if c == 71 else 3)) & mask
        if i >= k - 1:
            counts[word] += 1
    return counts


def mandelbrot(width, height, most):
    out = np.zeros((height, width), np.int32)
    for y in range(height):
        for x in range(width):
            cr, ci = -2.0 + 3.0 * x / width, -1.0 + 2.0 * y / height
            zr = zi = 0.0
            n = 0
            while zr * zr + zi * zi <= 4.0 and n < most:
                zr, zi = zr * zr - zi * zi + cr, 2.0 * zr * zi + ci
                n += 1
            out[y, x] = n
    return out


def cholesky(a):
    n = a.shape[0]
    for i in range(n):
        for j in range(i + 1):
            s = a[i, j]
            for k in range(j):
                s -= a[i, k] * a[j, k]
            a[i, j] = math.sqrt(s) if i == j else s / a[j, j]
    return a


def queens(n):
    columns = np.zeros(n, np.int64)
    row = count = 0
    columns[0] = -1
    while row >= 0:
        columns[row] += 1
        while columns[row] < n:
            for r in range(row):
                if (
                    columns[r] == columns[row]
                    or abs(columns[r] - columns[row]) == row - r
                ):
                    break
            else:
                break
            columns[row] += 1
        if columns[row] < n:
            if row == n - 1:
                count += 1
            else:
                row += 1
                columns[row] = -1
        else:
            row -= 1
    return count


def life(board, steps):
    n, m = board.shape
    other = np.zeros_like(board)
    for _ in range(steps):
        for i in range(n):
            for j in range(m):
                c = 0
                for di in range(-1, 2):
                    for dj in range(-1, 2):
                        if di or dj:
                            c += board[(i + di) % n, (j + dj) % m]
                other[i, j] = 1 if c == 3 or (board[i, j] and c == 2) else 0
        board, other = other, board
    return board


def generator(n, seed):
    inside = 0
    for _ in range(n):
        seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
        x = seed / 0x7FFFFFFF
        seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
        y = seed / 0x7FFFFFFF
        if x * x + y * y < 1.0:
            inside += 1
    return 4.0 * inside / n


def collatz(limit):
    best = longest = 0
    for start in range(1, limit):
        n, steps = start, 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        if steps > longest:
            best, longest = start, steps
    return best, longest


def sieve(n):
    prime = np.ones(n + 1, np.bool_)
    prime[0] = prime[1] = False
    i = 2
    while i * i <= n:
        if prime[i]:
            for j in range(i * i, n + 1, i):
                prime[j] = False
        i += 1
    count = 0
    for p in prime:
        if p:
            count += 1
    return count, prime


def sums_of_a_list(values):
    total, most, odd = 0, 0, 0
    for v in values:
        total += v * v % 7
        most = max(most, v)
        odd += v & 1
    return total, most, odd


def bubble_sort(x):
    for i in range(len(x)):
        for j in range(len(x) - 1 - i):
            if x[j] > x[j + 1]:
                x[j], x[j + 1] = x[j + 1], x[j]
    return x


def bisect(x, wanted):
    found = np.empty(len(wanted), np.int64)
    for k in range(len(wanted)):
        low, high = 0, len(x)
        while low < high:
            middle = (low + high) // 2
            if x[middle] < wanted[k]:
                low = middle + 1
            else:
                high = middle
        found[k] = low
    return found


def euler(n):
    x, v, t = 1.0, 0.0, 0.0
    while t < 1.0 and n > 0:
        v -= math.sin(x) * 0.001
        x += v * 0.001
        t += 0.001
        n -= 1
    return x, v, t


def smooth(x, alpha):
    y = np.zeros_like(x)
    for i in range(1, len(x)):
        y[i] = y[i - 1] + alpha * (x[i] - y[i - 1])
    return y


def histogram(x, bins):
    counts = np.zeros(bins, np.int64)
    for v in x:
        k = int(v * bins)
        if 0 <= k < bins:
            counts[k] += 1
    return counts


def gcd_table(n):
    out = np.zeros((n, n), np.int32)
    for i in range(n):
        for j in range(n):
            a, b = i, j
            while b:
                a, b = b, a % b
            out[i, j] = a
    return out


def matrix_product(a, b):
    c = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            for k in range(a.shape[1]):
                c[i, j] += a[i, k] * b[k, j]
    return c


def square(v):
    return v * v


def clipped(v, low, high):
    if v < low:
        return low
    return min(v, high)


def with_helpers(x):
    total = 0.0
    for i in range(len(x)):
        total += square(clipped(x[i], 0.25, 0.75))
    return total


def integrate(n):
    total, h = 0.0, 1.0 / n
    for i in range(n):
        x = (i + 0.5) * h
        total += 4.0 / (1.0 + x * x)
    return total * h


def knapsack(weights, values, capacity):
    best = np.zeros(capacity + 1, np.int64)
    for i in range(len(weights)):
        for c in range(capacity, weights[i] - 1, -1):
            best[c] = max(best[c], best[c - weights[i]] + values[i])
    return best[capacity]


def nearest(points, queries):
    out = np.zeros(len(queries), np.int64)
    for q in range(len(queries)):
        best, at = 1e300, -1
        for p in range(len(points)):
            d = 0.0
            for k in range(points.shape[1]):
                t = points[p, k] - queries[q, k]
                d += t * t
            if d < best:
                best, at = d, p
        out[q] = at
    return out


def first_above(x, limit):
    for i in range(len(x)):
        if x[i] > limit:
            return i, x[i]
    return None


def kalman(measured, step, noise, error):
    """Place and speed of a body, as its measured places tell."""
    out = np.zeros((len(measured), 2))
    place, speed = 0.0, 0.0
    a, b, c = 1.0, 0.0, 1.0  # the covariance: [[a, b], [b, c]]
    for i in range(len(measured)):
        place += step * speed
        a, b, c = a + 2 * step * b + step * step * c + noise, b + step * c, c + noise
        seen = a + error
        gain_place, gain_speed = a / seen, b / seen
        missed = measured[i] - place
        place += gain_place * missed
        speed += gain_speed * missed
        a, b, c = (1 - gain_place) * a, (1 - gain_place) * b, c - gain_speed * b
        out[i, 0], out[i, 1] = place, speed
    return out
