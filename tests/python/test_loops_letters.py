"""Loops over bytes and texts as machine code: letters, their numbers, comparisons and `in`; and wherever the code is left, the frame as
Python would have left it. A capture that looks at large containers again and again ends in time."""

import heapq
import time

import framejit
import numpy as np
import pytest
from test_loops_compiled import check, rng, scalar_loops  # noqa: F401


def dna(n, seed=7):
    return bytes(rng(seed).choice([65, 67, 71, 84], n).astype(np.uint8))


def test_counts_of_words():
    def program(s, k, counts):
        mask, h = (1 << (2 * k)) - 1, 0
        for i in range(len(s)):
            c = s[i]
            v = 0 if c == 65 else 1 if c == 67 else 2 if c == 71 else 3
            h = ((h << 2) | v) & mask
            if i >= k - 1:
                counts[h] += 1
        return counts, h, c

    check(program, (dna(300), 3, np.zeros(64, np.int64)), (dna(200, 8), 2, np.zeros(64, np.int64)))


@pytest.mark.parametrize("text", [False, True], ids=["bytes", "text"])
def test_gone_through(text):
    def of_bytes(s, stop):
        t = last = 0
        for at, c in enumerate(s):
            t = (t * 31 + c) & 0xFFFFFFFF
            last = c
            if at == stop:
                break
        for c in reversed(s):
            t = (t * 33 ^ c) & 0xFFFFFFFF
        return t, last, c

    def of_text(s, stop):
        t, last = 0, ""
        for at, c in enumerate(s):
            t = (t * 31 + ord(c)) & 0xFFFFFFFF
            last = c
            if at == stop:
                break
        for c in reversed(s):
            t = (t * 33 ^ ord(c)) & 0xFFFFFFFF
        return t, last, c, last is c

    a, b = dna(200), dna(150, 8)
    calls = (a, 1000), (b, 70), (a[:2], 0)
    check(of_text if text else of_bytes, *(((s.decode() if text else s), stop) for s, stop in calls), loops=2)


def test_edit_distance_of_texts():
    def program(a, b):
        row = list(range(len(b) + 1))
        for i in range(len(a)):
            before, row[0] = row[0], i + 1
            for j in range(len(b)):
                cost = before if a[i] == b[j] else min(before, row[j], row[j + 1]) + 1
                before, row[j + 1] = row[j + 1], cost
        return row[-1]

    check(program, ("kitten" * 6, "sitting" * 5), ("abc" * 10, "acb" * 12), ("Größe" * 4, "Grüße" * 3))


def test_letters_in_a_few():
    def program(s, low):
        vowels = high = digits = 0
        kept = "?"
        for c in s:
            if c in "aeiou":
                vowels += 1
                kept = c
            elif c not in ("x", "y") and c >= low:
                high += 1
            if ord(c) in (48, 49, 50):
                digits += 1
        return vowels, high, digits, kept, c

    check(program, ("a quick brown fox 0123 jumps over y" * 5, "n"), ("b" * 40, "c"))


def test_in_what_is_empty():
    def program(s):
        n = 0
        for c in s:
            if c not in "":
                n += 1
        return n

    compiled = framejit.compile(program)
    for _ in range(3):
        with pytest.raises(TypeError):
            compiled(b"abc" * 60)
        assert compiled("abc" * 60) == 180


def test_letters_are_made():
    def program(s, out, shift):
        last = "a"
        for i in range(len(s)):
            last = chr((ord(s[i]) - 97 + shift) % 26 + 97)
            out[i] = ord(last)
        return out, last, last is chr(ord(last))

    check(program, ("helloworld" * 9, np.zeros(90, np.int64), 5), ("abc" * 30, np.zeros(90, np.int64), 11))


def test_a_letter_that_there_is_not():
    def program(s, n):
        t = 0
        for i in range(n):
            t += ord(s[i])
        return t

    def made(n):
        c = ""
        for i in range(n):
            c = chr(200 + i)
        return c

    check(program, ("abcdef" * 20, 120), ("abcdef" * 20, 121))  # IndexError
    check(made, (40,), (300,))  # beyond the letters that Python has once, and that code knows


def test_other_texts_are_left_to_python():
    def program(s):
        t = 0
        for i in range(len(s)):
            t += ord(s[i])
        return t

    class Text(str):
        def __getitem__(self, i):
            return "z"

    compiled = check(program, ("abc" * 30,))
    for s in ("ä" * 50, "ab\N{GREEK SMALL LETTER ALPHA}" * 20, Text("abc" * 20), "abc" * 31, ["a", "b"] * 20, "", "x"):
        assert compiled(s) == program(s)


def test_a_heap_does_not_hold_up_the_capture():
    # Each call looked at the whole heap, which no count of instructions shows: 10,000 calls took half a minute.
    def program(xs):
        h = []
        for x in xs:
            heapq.heappush(h, x)
        t = 0
        while h:
            t = (t * 3 + heapq.heappop(h)) % 1000003
        return t

    compiled, xs = framejit.compile(program), rng().integers(0, 500, 10_000).tolist()
    start = time.thread_time()
    assert compiled(xs) == program(xs)
    assert time.thread_time() - start < 1.5
    assert compiled(xs[::-1]) == program(xs[::-1])
