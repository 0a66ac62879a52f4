"""Programs of textbooks, as one finds them: what loop code makes of them is what Python does."""

import math
import os
import subprocess
import sys

import framejit
import numpy as np
import pytest
from test_loops_compiled import check, rng, scalar_loops  # noqa: F401 (a fixture for this file, too)


def fft(re, im):
    n = len(re)
    j = 0
    for i in range(1, n):
        bit = n >> 1
        while j & bit:
            j ^= bit
            bit >>= 1
        j |= bit
        if i < j:
            re[i], re[j] = re[j], re[i]
            im[i], im[j] = im[j], im[i]
    size = 2
    while size <= n:
        angle = -2.0 * math.pi / size
        wr, wi = math.cos(angle), math.sin(angle)
        for start in range(0, n, size):
            ur, ui = 1.0, 0.0
            for k in range(size // 2):
                a, b = start + k, start + k + size // 2
                tr = ur * re[b] - ui * im[b]
                ti = ur * im[b] + ui * re[b]
                re[b], im[b] = re[a] - tr, im[a] - ti
                re[a], im[a] = re[a] + tr, im[a] + ti
                ur, ui = ur * wr - ui * wi, ur * wi + ui * wr
        size *= 2
    return re, im


def lru(pages, frames):
    held = np.full(frames, -1, np.int64)
    used = np.zeros(frames, np.int64)
    misses = 0
    for t in range(len(pages)):
        hit = -1
        oldest = 0
        for k in range(frames):
            if held[k] == pages[t]:
                hit = k
                break
            if used[k] < used[oldest]:
                oldest = k
        if hit < 0:
            misses += 1
            held[oldest] = pages[t]
            hit = oldest
        used[hit] = t + 1
    return misses


def determinant(a):
    n = len(a)
    det = 1.0
    for i in range(n):
        best = i
        for r in range(i + 1, n):
            if abs(a[r, i]) > abs(a[best, i]):
                best = r
        if a[best, i] == 0.0:
            return 0.0
        if best != i:
            for c in range(n):
                a[i, c], a[best, c] = a[best, c], a[i, c]
            det = -det
        det *= a[i, i]
        for r in range(i + 1, n):
            f = a[r, i] / a[i, i]
            for c in range(i, n):
                a[r, c] -= f * a[i, c]
    return det


def kmeans(points, centers, rounds):
    n, d = points.shape
    k = len(centers)
    label = np.zeros(n, np.int64)
    for _ in range(rounds):
        counts = np.zeros(k, np.int64)
        sums = np.zeros((k, d))
        for i in range(n):
            best = 1e300
            for c in range(k):
                s = 0.0
                for j in range(d):
                    t = points[i, j] - centers[c, j]
                    s += t * t
                if s < best:
                    best = s
                    label[i] = c
            counts[label[i]] += 1
            for j in range(d):
                sums[label[i], j] += points[i, j]
        for c in range(k):
            if counts[c] > 0:
                for j in range(d):
                    centers[c, j] = sums[c, j] / counts[c]
    return label, centers


def rk4(steps, h):
    x, y, z = 1.0, 1.0, 1.0
    path = np.empty((steps, 3))
    for i in range(steps):
        k1x, k1y, k1z = 10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z
        ax, ay, az = x + h / 2 * k1x, y + h / 2 * k1y, z + h / 2 * k1z
        k2x, k2y, k2z = 10.0 * (ay - ax), ax * (28.0 - az) - ay, ax * ay - 8.0 / 3.0 * az
        ax, ay, az = x + h / 2 * k2x, y + h / 2 * k2y, z + h / 2 * k2z
        k3x, k3y, k3z = 10.0 * (ay - ax), ax * (28.0 - az) - ay, ax * ay - 8.0 / 3.0 * az
        ax, ay, az = x + h * k3x, y + h * k3y, z + h * k3z
        k4x, k4y, k4z = 10.0 * (ay - ax), ax * (28.0 - az) - ay, ax * ay - 8.0 / 3.0 * az
        x += h / 6 * (k1x + 2 * k2x + 2 * k3x + k4x)
        y += h / 6 * (k1y + 2 * k2y + 2 * k3y + k4y)
        z += h / 6 * (k1z + 2 * k2z + 2 * k3z + k4z)
        path[i, 0], path[i, 1], path[i, 2] = x, y, z
    return path


def banded_levenshtein(a, b, band):
    n, m = len(a), len(b)
    big = n + m
    before = np.full(m + 1, big, np.int64)
    now = np.full(m + 1, big, np.int64)
    for j in range(min(band, m) + 1):
        before[j] = j
    for i in range(1, n + 1):
        low, high = max(1, i - band), min(m, i + band)
        now[low - 1] = i if low == 1 else big
        for j in range(low, high + 1):
            best = before[j - 1] + (a[i - 1] != b[j - 1])
            if before[j] + 1 < best:  # noqa: PLR1730
                best = before[j] + 1
            if now[j - 1] + 1 < best:  # noqa: PLR1730
                best = now[j - 1] + 1
            now[j] = best
        if high < m:
            now[high + 1] = big
        before, now = now, before
    return before[m]


def prime_gaps(limit):
    composite = np.zeros(limit + 1, np.uint8)
    gaps = np.zeros(200, np.int64)
    last = 2
    for p in range(2, limit + 1):
        if composite[p]:
            continue
        gaps[p - last] += 1
        last = p
        q = p * p
        while q <= limit:
            composite[q] = 1
            q += p
    return gaps


def run_lengths(data, out):
    k = 0
    i = 0
    while i < len(data):
        v = data[i]
        length = 1
        while i + length < len(data) and data[i + length] == v and length < 255:
            length += 1
        out[k] = length
        out[k + 1] = v
        k += 2
        i += length
    return k


def smith_waterman(a, b, match, mismatch, gap):
    h = np.zeros((len(a) + 1, len(b) + 1), np.int32)
    best = 0
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            s = h[i - 1, j - 1] + (match if a[i - 1] == b[j - 1] else mismatch)
            s = max(0, s, h[i - 1, j] + gap, h[i, j - 1] + gap)
            h[i, j] = s
            best = max(best, s)
    return best, h


def union_find(n, edges):
    parent = np.arange(n)
    size = np.ones(n, np.int64)
    parts = n
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
            parts -= 1
    return parts, size


def heap_sort(x):
    n = len(x)
    for start in range(n // 2 - 1, -1, -1):
        root = start
        while 2 * root + 1 < n:
            child = 2 * root + 1
            if child + 1 < n and x[child] < x[child + 1]:
                child += 1
            if x[root] >= x[child]:
                break
            x[root], x[child] = x[child], x[root]
            root = child
    for end in range(n - 1, 0, -1):
        x[0], x[end] = x[end], x[0]
        root = 0
        while 2 * root + 1 < end:
            child = 2 * root + 1
            if child + 1 < end and x[child] < x[child + 1]:
                child += 1
            if x[root] >= x[child]:
                break
            x[root], x[child] = x[child], x[root]
            root = child
    return x


def lis(x):
    tails = np.zeros(len(x), x.dtype)
    size = 0
    for v in x:
        low, high = 0, size
        while low < high:
            mid = (low + high) // 2
            if tails[mid] < v:
                low = mid + 1
            else:
                high = mid
        tails[low] = v
        if low == size:
            size += 1
    return size


def flood(grid, r, c):
    n, m = grid.shape
    stack = np.zeros((4 * n * m + 4, 2), np.int64)
    stack[0, 0], stack[0, 1] = r, c
    top, filled = 1, 0
    while top:
        top -= 1
        i, j = stack[top, 0], stack[top, 1]
        if i < 0 or j < 0 or i >= n or j >= m or grid[i, j]:
            continue
        grid[i, j] = 2
        filled += 1
        for di, dj in ((0, 1), (1, 0), (0, -1), (-1, 0)):
            stack[top, 0], stack[top, 1] = i + di, j + dj
            top += 1
    return filled


def jacobi(a, b, steps):
    n = len(a)
    for _ in range(steps):
        for i in range(1, n - 1):
            for j in range(1, n - 1):
                b[i, j] = 0.25 * (a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])
        for i in range(1, n - 1):
            for j in range(1, n - 1):
                a[i, j] = b[i, j]
    return a


def bfs_grid(grid):
    n, m = grid.shape
    dist = np.full((n, m), -1, np.int32)
    queue = np.zeros(n * m, np.int64)
    head, tail = 0, 1
    dist[0, 0] = 0
    while head < tail:
        at = queue[head]
        head += 1
        i, j = at // m, at % m
        for k in range(4):
            y = i + (k == 0) - (k == 1)
            x = j + (k == 2) - (k == 3)
            if 0 <= y < n and 0 <= x < m and grid[y, x] == 0 and dist[y, x] < 0:
                dist[y, x] = dist[i, j] + 1
                queue[tail] = y * m + x
                tail += 1
    return dist


def adler32(data):
    a, b = 1, 0
    for v in data:
        a = (a + int(v)) % 65521
        b = (b + a) % 65521
    return (b << 16) | a


def fnv1a(data):
    h = 0xCBF29CE484222325
    for v in data:
        h ^= int(v)
        h = (h * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def gauss_seidel(a, b, x, rounds):
    for _ in range(rounds):
        for i in range(len(b)):
            s = 0.0
            for j in range(len(b)):
                if j != i:
                    s += a[i, j] * x[j]
            x[i] = (b[i] - s) / a[i, i]
    return x


def xorshift(x, n):
    s = 0
    for _ in range(n):
        x ^= (x << 13) & 0xFFFFFFFF
        x ^= x >> 17
        x ^= (x << 5) & 0xFFFFFFFF
        s = (s + x) % 1000003
    return x, s


def kmp(text, pattern):
    fail, k, hits = np.zeros(len(pattern), np.int64), 0, 0
    for i in range(1, len(pattern)):
        while k > 0 and pattern[k] != pattern[i]:
            k = fail[k - 1]
        if pattern[k] == pattern[i]:
            k += 1
        fail[i] = k
    k = 0
    for i in range(len(text)):
        while k > 0 and pattern[k] != text[i]:
            k = fail[k - 1]
        if pattern[k] == text[i]:
            k += 1
        if k == len(pattern):
            hits += 1
            k = fail[k - 1]
    return hits


def matrix_chain(p):
    n = len(p) - 1
    m = np.zeros((n, n), np.int64)
    for length in range(2, n + 1):
        for i in range(n - length + 1):
            j = i + length - 1
            m[i, j] = 1 << 60
            for k in range(i, j):
                cost = m[i, k] + m[k + 1, j] + p[i] * p[k + 1] * p[j + 1]
                if cost < m[i, j]:  # noqa: PLR1730 (a branch is what this is about)
                    m[i, j] = cost
    return m[0, n - 1]


def dijkstra(g, start):
    n = g.shape[0]
    distance, done = np.full(n, 1e18), np.zeros(n, np.bool_)
    distance[start] = 0.0
    for _ in range(n):
        u, best = -1, 1e18
        for v in range(n):
            if not done[v] and distance[v] < best:
                best, u = distance[v], v
        if u < 0:
            break
        done[u] = True
        for v in range(n):
            if g[u, v] > 0 and distance[u] + g[u, v] < distance[v]:
                distance[v] = distance[u] + g[u, v]
    return distance


def lcs(a, b):
    m, n = len(a), len(b)
    table = np.zeros((m + 1, n + 1), np.int64)
    for i in range(m):
        for j in range(n):
            if a[i] == b[j]:
                table[i + 1, j + 1] = table[i, j] + 1
            else:
                table[i + 1, j + 1] = max(table[i, j + 1], table[i + 1, j])
    out = []
    i, j = m, n
    while i > 0 and j > 0:
        if a[i - 1] == b[j - 1]:
            out.append(a[i - 1])
            i -= 1
            j -= 1
        elif table[i - 1, j] >= table[i, j - 1]:
            i -= 1
        else:
            j -= 1
    return table[m, n], out


def jacobi_eigen(a, v, sweeps):
    n = a.shape[0]
    for _ in range(sweeps):
        for p in range(n - 1):
            for q in range(p + 1, n):
                if abs(a[p, q]) < 1e-12:
                    continue
                theta = (a[q, q] - a[p, p]) / (2.0 * a[p, q])
                t = 1.0 / (abs(theta) + math.sqrt(theta * theta + 1.0))
                if theta < 0.0:
                    t = -t
                c = 1.0 / math.sqrt(t * t + 1.0)
                s = t * c
                for k in range(n):
                    x, y = a[k, p], a[k, q]
                    a[k, p], a[k, q] = c * x - s * y, s * x + c * y
                for k in range(n):
                    x, y = a[p, k], a[q, k]
                    a[p, k], a[q, k] = c * x - s * y, s * x + c * y
                for k in range(n):
                    x, y = v[k, p], v[k, q]
                    v[k, p], v[k, q] = c * x - s * y, s * x + c * y
    return a, v


def simplex(t, most):
    rows, columns = t.shape
    steps = 0
    while steps < most:
        entering = -1
        least = -1e-12
        for j in range(columns - 1):
            if t[rows - 1, j] < least:
                least, entering = t[rows - 1, j], j
        if entering < 0:
            break
        leaving = -1
        ratio = 1e300
        for i in range(rows - 1):
            if t[i, entering] > 1e-12 and t[i, columns - 1] / t[i, entering] < ratio:
                ratio, leaving = t[i, columns - 1] / t[i, entering], i
        if leaving < 0:
            raise ValueError("unbounded")
        pivot = t[leaving, entering]
        for j in range(columns):
            t[leaving, j] /= pivot
        for i in range(rows):
            if i != leaving:
                factor = t[i, entering]
                for j in range(columns):
                    t[i, j] -= factor * t[leaving, j]
        steps += 1
    return steps, t


def viterbi(seen, start, transition, emission):
    n, states = len(seen), len(start)
    score = np.zeros((n, states))
    back = np.zeros((n, states), np.int32)
    for s in range(states):
        score[0, s] = start[s] + emission[s, seen[0]]
    for i in range(1, n):
        for s in range(states):
            best, at = -1e300, 0
            for r in range(states):
                p = score[i - 1, r] + transition[r, s]
                if p > best:
                    best, at = p, r
            score[i, s] = best + emission[s, seen[i]]
            back[i, s] = at
    path = np.zeros(n, np.int64)
    for s in range(states):
        if score[n - 1, s] > score[n - 1, path[n - 1]]:
            path[n - 1] = s
    for i in range(n - 1, 0, -1):
        path[i - 1] = back[i, path[i]]
    return path


def fade(t):
    return t * t * t * (t * (t * 6.0 - 15.0) + 10.0)


def slope(h, x, y):
    h = h & 3
    u = x if h & 1 == 0 else -x
    return u + (y if h & 2 == 0 else -y)


def perlin(permutation, width, height, scale):
    out = np.zeros((height, width))
    for py in range(height):
        for px in range(width):
            x, y = px * scale, py * scale
            xi, yi = int(x) & 255, int(y) & 255
            x, y = x - int(x), y - int(y)
            u, v = fade(x), fade(y)
            a = permutation[xi] + yi
            b = permutation[(xi + 1) & 255] + yi
            low = slope(permutation[a & 255], x, y)
            low += u * (slope(permutation[b & 255], x - 1.0, y) - low)
            high = slope(permutation[(a + 1) & 255], x, y - 1.0)
            high += u * (slope(permutation[(b + 1) & 255], x - 1.0, y - 1.0) - high)
            out[py, px] = low + v * (high - low)
    return out


def bellman_ford(n, edges, weights, source):
    distance = np.full(n, 10**15)
    distance[source] = 0
    for _ in range(n - 1):
        changed = False
        for e in range(len(weights)):
            u, v = edges[e, 0], edges[e, 1]
            if distance[u] + weights[e] < distance[v]:
                distance[v] = distance[u] + weights[e]
                changed = True
        if not changed:
            break
    for e in range(len(weights)):
        if distance[edges[e, 0]] + weights[e] < distance[edges[e, 1]]:
            return None
    return distance


def ising(spins, coupling, steps, seed):
    n, m = spins.shape
    energy = 0
    for _ in range(steps):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**62 if seed < 0 else (seed * 1103515245 + 12345) % 2147483648
        i = seed // 7 % n
        j = seed // 7919 % m
        around = spins[(i + 1) % n, j] + spins[(i - 1) % n, j] + spins[i, (j + 1) % m] + spins[i, (j - 1) % m]
        change = 2 * spins[i, j] * around
        if change <= 0 or seed % 1000 < 1000 * math.exp(-change * coupling):
            spins[i, j] = -spins[i, j]
            energy += int(change)
    return energy, spins


def thomas(lower, diagonal, upper, right):
    n = len(diagonal)
    for i in range(1, n):
        w = lower[i] / diagonal[i - 1]
        diagonal[i] -= w * upper[i - 1]
        right[i] -= w * right[i - 1]
    right[n - 1] /= diagonal[n - 1]
    for i in range(n - 2, -1, -1):
        right[i] = (right[i] - upper[i] * right[i + 1]) / diagonal[i]
    return right


def sobel(image, kernel):
    h, w = image.shape
    out = np.zeros((h, w), np.float32)
    for y in range(1, h - 1):
        for x in range(1, w - 1):
            gx = gy = 0
            for dy in (-1, 0, 1):
                for dx in range(-1, 2):
                    if dy or dx:
                        gx += kernel[dy + 1, dx + 1] * int(image[y + dy, x + dx])
                        gy += kernel[dx + 1, dy + 1] * int(image[y + dy, x + dx])
            out[y, x] = math.sqrt(gx * gx + gy * gy)
    return out


def householder(a):
    m, n = a.shape
    for k in range(n):
        norm = 0.0
        for i in range(k, m):
            norm += a[i, k] * a[i, k]
        norm = math.sqrt(norm)
        if norm == 0.0:
            continue
        if a[k, k] > 0.0:
            norm = -norm
        head = a[k, k] - norm
        beta = -1.0 / (norm * head)
        for j in range(k + 1, n):
            s = head * a[k, j]
            for i in range(k + 1, m):
                s += a[i, k] * a[i, j]
            s *= beta
            a[k, j] -= s * head
            for i in range(k + 1, m):
                a[i, j] -= s * a[i, k]
        a[k, k] = norm
    return a


CALLS = {
    fft: [(rng().random(64), rng().random(64)), (rng().random(2), rng().random(2))],
    lru: [(rng().integers(0, 12, 300), 5), (rng().integers(0, 3, 300), 4)],
    determinant: [(rng().random((12, 12)),), (np.zeros((5, 5)),), (rng().integers(-3, 4, (9, 9)).astype(np.float64),)],
    kmeans: [(rng().random((60, 3)), rng().random((4, 3)), 3), (np.full((9, 2), np.nan), rng().random((2, 2)), 2)],
    rk4: [(200, 0.01), (200, 1.0)],
    banded_levenshtein: [(rng().integers(0, 4, 50), rng().integers(0, 4, 47), band) for band in (8, 4, 60, 0)],
    prime_gaps: [(3000,), (1,), (1 << 12,)],
    run_lengths: [(np.repeat(rng().integers(0, 5, 90).astype(np.uint8), rng().integers(1, 6, 90)), np.zeros(300, np.uint8)), (np.zeros(600, np.uint8), np.zeros(4, np.uint8))],
    smith_waterman: [(rng().integers(0, 4, 30), rng().integers(0, 4, 25), 2, -1, -2), (rng().integers(0, 4, 30), rng().integers(0, 4, 25), 2**30, -1, -2)],
    union_find: [(80, rng().integers(0, 80, (90, 2))), (30, rng().integers(0, 33, (90, 2)))],
    heap_sort: [(rng().random(120),), (rng().integers(0, 50, 99),), (np.full(60, np.nan),)],
    lis: [(rng().integers(0, 1000, 200),), (rng().random(90),)],
    flood: [((rng().random((14, 14)) > 0.6).astype(np.int8), 5, 7)],
    jacobi: [(rng().random((14, 17)), np.zeros((14, 17)), 4), (np.full((9, 9), 1e308), np.zeros((9, 9)), 3)],
    bfs_grid: [((rng().random((12, 15)) > 0.8).astype(np.int8),)],
    adler32: [(rng().integers(0, 256, 500).astype(np.uint8),)],
    fnv1a: [(rng().integers(0, 256, 60).astype(np.uint8),)],
    gauss_seidel: [
        (rng().random((20, 20)) + 20 * np.eye(20), rng().random(20), np.zeros(20), 4),
        (rng().random((6, 6)) * np.inf, rng().random(6), np.zeros(6), 3),
        (rng().random((4, 6)), rng().random(6), np.zeros(6), 3),
        (np.zeros((4, 4)), rng().random(4), np.zeros(4), 2),
    ],
    xorshift: [(2463534242, 3000), (1, 50), (-5, 60), (2**70, 20)],
    kmp: [(rng().integers(0, 2, 2000), np.array([0, 1, 0, 0, 1])), (rng().integers(0, 2, 90), np.array([0, 0, 0])), (rng().integers(0, 2, 30), np.zeros(0, np.int64))],
    matrix_chain: [(rng().integers(1, 50, 25),), ([5, 3, 8, 2, 9, 4] * 4,), (rng().integers(1, 50, 20) * 10**9,)],
    dijkstra: [
        (np.where(rng().random((40, 40)) > 0.8, rng().random((40, 40)), 0), 0),
        (np.zeros((5, 5)), 2),
        (np.full((5, 5), np.inf), 2),
        (np.ones((5, 5)), 7),
    ],
    lcs: [(rng().integers(0, 4, 40), rng().integers(0, 4, 33)), (rng().integers(0, 4, 33), rng().integers(0, 4, 40)), ([1, 2, 3] * 9, [2, 3, 3] * 8), (rng().random(20), rng().random(0))],
    jacobi_eigen: [
        ((lambda a: a + a.T)(rng().random((9, 9))), np.eye(9), 4),  # noqa: PLC3002
        ((lambda a: a + a.T)(rng().random((12, 12))), np.eye(12), 2),  # noqa: PLC3002
        (rng().random((9, 9)), np.eye(8), 2),
        (np.full((5, 5), 1e200), np.eye(5), 2),
        (rng().random((6, 6)).astype(np.float32), np.eye(6, dtype=np.float32), 2),
    ],
    simplex: [
        (np.c_[np.r_[rng().random((6, 8)), -rng().random((1, 8))], np.r_[np.eye(6), np.zeros((1, 6))], np.r_[rng().random(6) + 1, 0]], 40),
        (np.c_[np.r_[rng().random((5, 5)), -rng().random((1, 5))], np.r_[np.eye(5), np.zeros((1, 5))], np.r_[rng().random(5) + 1, 0]], 2),
        (np.r_[-rng().random((5, 7)), -rng().random((1, 7))], 9),
    ],
    viterbi: [(rng().integers(0, 5, 40), rng().random(4), rng().random((4, 4)), rng().random((4, 5))), (rng().integers(0, 5, 30), rng().random(6), rng().random((6, 6)), rng().random((6, 5))), (rng().integers(0, 7, 30), rng().random(4), rng().random((4, 4)), rng().random((4, 5)))],
    perlin: [(rng().permutation(256), 23, 17, 0.13), (rng().permutation(256), 9, 31, 7.7), (rng().permutation(256).tolist(), 9, 9, 0.2), (rng().permutation(200), 9, 31, 7.7)],
    bellman_ford: [(30, rng().integers(0, 30, (90, 2)), rng().integers(1, 20, 90), 0), (30, rng().integers(0, 30, (60, 2)), rng().integers(-9, 20, 60), 3), (20, rng().integers(0, 30, (60, 2)), rng().integers(1, 20, 60), 3)],
    ising: [(rng().choice([-1, 1], (12, 12)), 0.3, 900, 7), (rng().choice([-1, 1], (7, 12)).astype(np.int8), 0.1, 400, 3), (rng().choice([-1, 1], (5, 5)), 0.3, 60, -5)],
    thomas: [(rng().random(40), rng().random(40) + 3, rng().random(40), rng().random(40)), (rng().random(40), rng().random(41) + 3, rng().random(40), rng().random(41)), (rng().random(40), np.zeros(40), rng().random(40), rng().random(40)), (np.ones(5), np.full(5, 2), np.ones(5), np.ones(5))],
    sobel: [
        (rng().integers(0, 256, (20, 24)).astype(np.uint8), np.array([[1, 0, -1], [2, 0, -2], [1, 0, -1]])),
        (rng().integers(0, 256, (12, 12)).astype(np.uint8), rng().random((3, 3))),
        (rng().integers(0, 256, (9, 9)), np.ones((3, 2), np.int64)),
    ],
    householder: [(rng().random((14, 9)),), (rng().random((9, 9)),), (rng().random((6, 9)),), (np.zeros((8, 4)),), (np.full((8, 4), 1e200),)],
}
IN_PYTHON = {fnv1a: "its integers have more than 64 bits", flood: "few rounds at once"}


@pytest.mark.parametrize("program", CALLS, ids=lambda f: f.__name__)
def test_what_python_does(program):
    left = program in IN_PYTHON
    check(program, *CALLS[program], runs=not left, loops=not left)


def test_floats_that_nobody_asks_for_multiply_no_code():
    """The least and the best ratio are floats of Python or NumPy behind their loops, in which nobody asks for them any more: the loop around was too much code."""
    compiled = framejit.compile(simplex)
    own = np.random.default_rng(7)
    table = np.c_[np.r_[own.random((25, 30)), -own.random((1, 30))], np.r_[np.eye(25), np.zeros((1, 25))], np.r_[own.random(25) + 1, 0]]
    for _ in range(150):
        steps, _ = compiled(table.copy(), 40)
    before = compiled.cache_info()["scalar_runs"]
    assert compiled(table.copy(), 40)[0] == steps > 3
    assert compiled.cache_info()["scalar_runs"] == before + 1


def many_kinds(x, n):
    a = b = c = d = e = f = g = h = j = 0
    for i in range(n):
        for k in range(len(x)):
            x[k] += 1
        a = x[i] if x[i] & 1 else a // 2
        b = x[i] if x[i] & 2 else b // 2
        c = x[i] if x[i] & 4 else c // 2
        d = x[i] if x[i] & 8 else d // 2
        e = x[i] if x[i] & 16 else e // 2
        f = x[i] if x[i] & 32 else 0
        g = x[i] if x[i] & 64 else 0
        h = x[i] if x[i] & 128 else 0
        j = x[i] if x[i] & 256 else 0
        for k in range(len(x)):
            x[k] += a + b + c + d + e + f + g + h + j
            x[k] %= 512
    return x


def test_a_loop_that_has_no_code_is_asked_more_and_more_seldom():
    """Translating the outermost loop of this one again and again took twenty times as long as its inner ones."""
    program = """
import framejit, numpy as np
from test_loops_programs import many_kinds
compiled = framejit.compile(many_kinds)
x = np.random.default_rng(1).integers(0, 512, 200)
for _ in range(12): compiled(x.copy(), 200)
assert compiled.cache_info()["scalar_runs"]
"""
    path = os.pathsep.join([os.path.dirname(__file__), os.getcwd(), *filter(None, sys.path)])
    env = {**os.environ, "FRAMEJIT_LOG": "loop", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0 < (done.stdout + done.stderr).count("no scalar code") < 20
