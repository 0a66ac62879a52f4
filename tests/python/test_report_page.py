"""The page of `python -m framejit report --html`, driven in headless Chromium: search, collapse, sort, diff, keys; no error on its console."""

import base64
import json
import os
import shutil
import subprocess
import time

import pytest
from test_report import analysed, recorded, report, run, write  # noqa: F401 (a fixture among them)

CHROMIUM = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")) if path), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")]


class Browser:
    """One page of Chromium, told what to do by the DevTools protocol over pipes."""

    def __init__(self, profile):
        child_in, self._out = os.pipe()
        self._in, child_out = os.pipe()
        # Chromium reads from 3 and writes to 4, whatever these numbers are here.
        start = f'exec "$0" "$@" 3<&{child_in} 4>&{child_out}'
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--window-size=1400,1200", "about:blank"]
        self._process = subprocess.Popen(["bash", "-c", start, CHROMIUM, *flags], pass_fds=(child_in, child_out), stderr=subprocess.DEVNULL)
        os.close(child_in)
        os.close(child_out)
        self._buffer, self._number, self._session, self.complaints = b"", 0, None, []
        page = self._do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._do("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._do(f"{domain}.enable")

    def _do(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **({"sessionId": self._session} if self._session else {})}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self):
        while b"\0" not in self._buffer:
            more = os.read(self._in, 1 << 16)
            assert more, "Chromium has ended"
            self._buffer += more
        text, _, self._buffer = self._buffer.partition(b"\0")
        told = json.loads(text)
        method, given = told.get("method"), told.get("params", {})
        bad = method == "Runtime.exceptionThrown" or method == "Log.entryAdded" and given["entry"]["level"] == "error"
        if bad or method == "Runtime.consoleAPICalled" and given["type"] in ("error", "assert"):
            self.complaints.append(given)
        return told

    def open(self, path):
        self._do("Page.navigate", url=path.as_uri())
        while self.ask("document.readyState") != "complete":
            time.sleep(0.05)

    def ask(self, expression):
        answer = self._do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self._do("Input.dispatchKeyEvent", type=kind, key=key, **({"text": key} if kind == "keyDown" and len(key) == 1 else {}))
        self.settle()

    def write(self, text):
        self._do("Input.insertText", text=text)
        self.settle()

    def click(self, selector):
        """With the mouse, where it is seen."""
        x, y = self.ask(f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect(); return [r.x + 12, r.y + r.height / 2]; }})()")
        for kind in ("mousePressed", "mouseReleased"):
            self._do("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def settle(self):
        self.ask("new Promise(done => setTimeout(() => requestAnimationFrame(() => done(1)), 150))")

    def picture(self, path):
        path.write_bytes(base64.b64decode(self._do("Page.captureScreenshot", format="png")["data"]))

    def end(self):
        self._process.terminate()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)


@pytest.fixture
def browser(tmp_path):
    made = Browser(tmp_path / "profile")
    yield made
    complaints = made.complaints
    made.end()
    assert complaints == []


def column(browser, section, number):
    return browser.ask(f"[...document.querySelectorAll('#{section} tbody tr')].map(r => r.cells[{number}].textContent)")


def microseconds(text):
    value, unit = text.split()
    return float(value) * {"s": 1e6, "ms": 1e3, "us": 1}[unit]


def test_a_report_is_read(recorded, browser, tmp_path):  # noqa: F811
    folder, told, _ = recorded("break")
    done = run("program.py", cwd=folder, FRAMEJIT_EVENTS="texts", FRAMEJIT_EVENTS_LOG="guards,graph,loop", FRAMEJIT_LEAVE="0")
    assert done.returncode == 0 and report(folder / "texts", "--html", tmp_path / "p.html").returncode == 0
    browser.open(tmp_path / "p.html")
    browser.picture(tmp_path / "top.png")
    first = browser.ask("[...document.querySelectorAll('.cause b')].slice(0, 2).map(b => b.textContent)")
    assert any(title.startswith("break FJ0005") for title in first), first  # compiling again may take longer on a busy machine

    # Search: a key goes to the field, tables and causes show what has the words, Escape shows all again.
    everything = len(column(browser, "segments", 0))
    assert everything > 2
    browser.press("/")
    browser.write("model")
    assert 0 < len(column(browser, "segments", 0)) < everything or len(column(browser, "breaks", 0)) == 0
    assert all("model" in name for name in column(browser, "segments", 7))
    browser.write(" no such word")
    assert column(browser, "segments", 0) == [] and "no cause matches" in browser.ask("document.querySelector('#first').textContent")
    browser.press("Escape")
    assert len(column(browser, "segments", 0)) == everything

    # Sort: numbers as numbers, downwards first, then upwards.
    browser.click("#segments th:nth-child(2)")
    assert browser.ask("document.querySelector('#segments th:nth-child(2)').getAttribute('aria-sort')") == "descending"
    runs = [int(v) for v in column(browser, "segments", 1)]
    assert runs == sorted(runs, reverse=True)
    browser.click("#segments th:nth-child(2)")
    assert [int(v) for v in column(browser, "segments", 1)] == sorted(runs)
    browser.click("#captures th:nth-child(2)")
    times = [microseconds(v) for v in column(browser, "captures", 1)]
    assert times == sorted(times, reverse=True)

    # Collapse: one section by its head, all by a key.
    assert browser.ask("document.querySelector('#segments .scroll').offsetHeight") > 0
    browser.click("#segments h2")
    assert browser.ask("document.querySelector('#segments .scroll').offsetHeight") == 0
    browser.press("c")
    assert browser.ask("document.querySelectorAll('section:not(.closed)').length") == 0
    browser.press("c")
    assert browser.ask("document.querySelectorAll('section.closed').length") == 0

    # Python, graph and kernels: the mouse over a line marks what was made of it.
    assert browser.ask("""(() => {
      const line = [...document.querySelectorAll('#code .panes > div:first-child pre span')].find(s => s.textContent.includes('np.tanh'));
      line.dispatchEvent(new MouseEvent('mouseenter'));
      return [...document.querySelectorAll('#code .panes > div')].map(p => p.querySelectorAll('span.on').length > 0);
    })()""") == [True, True, True]  # fmt: skip
    # The guards of this segment, how often they held, and which of them failed.
    chosen = next(t for t in analysed(folder / "texts")["texts"] if "graph" in t["texts"])
    ran = [s for s in analysed(folder / "texts")["segments"] if all(s[field] == chosen[field] for field in ("function", "file", "line"))]
    held = f"they held in {sum(s['runs'] for s in ran)} runs from here and failed in {sum(s['misses'] for s in ran)}"
    assert held in browser.ask("document.querySelector('#code').textContent") and sum(s["runs"] for s in ran) > 20
    rows = browser.ask("[...document.querySelectorAll('#code tbody tr')].map(r => [r.cells[0].textContent.trim(), r.cells[3].textContent])")
    assert ["L['self'].scale", "1"] in rows and ["numpy.tanh", ""] in rows
    browser.ask("document.querySelector('#code').scrollIntoView()")
    browser.picture(tmp_path / "code.png")

    # The timeline is drawn, and dark is dark.
    assert browser.ask("(() => { const c = document.querySelector('canvas'); return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v); })()")
    before = browser.ask("getComputedStyle(document.body).backgroundColor")
    browser.press("d")
    assert browser.ask("getComputedStyle(document.body).backgroundColor") != before
    browser.ask("scrollTo(0, 0)")
    browser.picture(tmp_path / "dark.png")


def test_a_difference_is_read(recorded, browser, tmp_path):  # noqa: F811
    before, after = recorded("break")[0], recorded("slow")[0]
    assert report(before / "trace", "--diff", after / "trace", "--html", tmp_path / "d.html").returncode == 0
    told = json.loads(report(before / "trace", "--diff", after / "trace", "--json", "-").stdout)
    browser.open(tmp_path / "d.html")
    browser.picture(tmp_path / "difference.png")
    pills = browser.ask("[...document.querySelectorAll('#difference .pill')].map(p => p.textContent)")
    assert sorted(pills) == sorted(c["change"] for c in told["causes"]) and {"gone", "new"} <= set(pills)
    browser.press("/")
    browser.write("gone")
    assert set(browser.ask("[...document.querySelectorAll('#difference .pill')].map(p => p.textContent)")) == {"gone"}


def test_symbols_choices_and_collectives_are_shown(browser, tmp_path):
    """Events as docs/events.md has them, of two ranks that part at their third collective."""
    place = {"place": "step@/a/train.py:3"}
    symbols = [{"symbol": "s0", "source": "L['x'].size(0)", "value": 8, "min": 1, "max": None, "number": False, "data": False}]
    made = [{"expression": "(s0 // 2)", "symbols": ["s0"], "value": 4, "by": "reshape", "file": "/a/train.py", "line": 7}]
    asked = [{"guard": "3 < s0", "symbols": ["s0"], "where": "/a/train.py:6"}]
    choice = {"kind": "choice", "what": "graph step", "chosen": "the form without fuse", "why": "7 us, the default 9 us", "ways": [["the default form", 9e-6], ["the form without fuse", 7e-6]]}
    for rank, last in enumerate(("all_reduce", "broadcast")):
        calls = [{"kind": "collective", "group": "0", "description": "default_pg", "sequence": n, "point_to_point": False, "op": op, "inputs": ["f32[8]"],
                  "outputs": ["f32[8]"], "state": "scheduled", "file": "/a/train.py", "line": 10 + n, "function": "step"}
                 for n, op in enumerate(("broadcast", "all_reduce", last), 1)]  # fmt: skip
        events = [{"kind": "process", "rank": rank}, {"kind": "symbols", **place, "symbols": symbols, "expressions": made, "guards": asked}, choice, *calls]
        write(tmp_path / "t", [{**e, "pid": 100 + rank} for e in events], f"framejit-{100 + rank}.jsonl")
    assert report(tmp_path / "t", "--html", tmp_path / "p.html").returncode == 0
    browser.open(tmp_path / "p.html")
    browser.picture(tmp_path / "details.png")
    assert browser.ask("document.querySelector('.cause b').textContent").startswith("ranks differ at collective 3 of group 0")
    assert set(column(browser, "symbols", 0)) == {"s0"} and set(column(browser, "symbols", 6)) == {"(s0 // 2) = 4 by reshape train.py:7"}
    assert set(column(browser, "symbols", 7)) == {"3 < s0 train.py:6"}
    assert column(browser, "choices", 1) == ["the form without fuse"] and "default form 9 us" in column(browser, "choices", 2)[0]
    assert any("they differ at 3" in text for text in column(browser, "collectives", 5))
    browser.press("/")
    browser.write("reshape")
    assert column(browser, "collectives", 0) == [] and len(column(browser, "symbols", 0)) == 2


def test_ten_thousand_events_are_fluid(browser, tmp_path):
    events = [{"kind": "process"}]
    for i in range(10_000):
        events.append({"kind": "capture", "place": f"f{i % 3000}@/a/module_{i % 50}.py:{i}", "line": i, "seconds": 1e-3, "ok": True, "runner": "graph",
                       "calls": 3, "breaks": [f"FJ0005@/a/module_{i % 50}.py:{i % 100}"]})  # fmt: skip
    write(tmp_path / "t", events)
    assert report(tmp_path / "t", "--html", tmp_path / "p.html").returncode == 0
    browser.open(tmp_path / "p.html")
    slowest = browser.ask("""(() => {
      const times = [];
      for (const words of ['f17', 'module_3 f2', '']) {
        document.getElementById('search').value = words;
        const start = performance.now();
        redraw.forEach(draw => draw());
        times.push(performance.now() - start);
      }
      return Math.max(...times);
    })()""")  # fmt: skip
    elements = browser.ask("document.querySelectorAll('*').length")
    print(f"slowest search over 10,000 events: {slowest:.0f} ms; {elements} elements")
    # What makes it so: however many events there are, few of them are elements of the page. How long it takes depends on the machine.
    assert elements < 40_000
    assert browser.ask("Math.max(...[...document.querySelectorAll('tbody')].map(b => b.rows.length))") == 300
