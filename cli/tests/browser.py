#!/usr/bin/env python3
"""Looks at reports in headless Chromium, driven through its DevTools pipe.

browser.py PINYARD [SCREENSHOTS]: makes traces, has PINYARD make pages of them, and asserts
that each page draws, without a word on the console, what it must; that zooming, moving and
hovering work; and that hostile names stay text. Ends with "N passed, M failed".
"""
import base64, json, os, shutil, statistics, subprocess, sys, tempfile, time

import made_up

CHROMIUM = next((found for found in map(shutil.which, ("chromium", "chromium-headless-shell", "chrome-headless-shell")) if found), None)


class Browser:
    """A page, by the commands of the DevTools protocol."""

    def __init__(self, profile):
        (from_us, to_it), (from_it, to_us) = os.pipe(), os.pipe()

        def places():
            # The ends may lie on 3 and 4 already: aside first.
            read, write = os.dup(from_us), os.dup(to_us)
            os.dup2(read, 3)
            os.dup2(write, 4)
            os.set_inheritable(3, True)
            os.set_inheritable(4, True)

        self.process = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", "--disable-extensions", "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND",
             f"--user-data-dir={profile}", "--remote-debugging-pipe"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=places)
        os.close(from_us), os.close(to_us)
        self.write, self.read = to_it, from_it
        self.buffer, self.number, self.session, self.said, self.asked = b"", 0, None, [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def receive(self):
        while b"\0" not in self.buffer:
            piece = os.read(self.read, 1 << 20)
            if not piece:
                raise RuntimeError(f"{CHROMIUM} ended with {self.process.wait()}")
            self.buffer += piece
        text, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(text)
        method, of = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.said.append(of["exceptionDetails"].get("exception", {}).get("description") or of["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.said.append(f"console.{of['type']}: {of['args']}")
        elif method == "Log.entryAdded" and of["entry"]["level"] in ("warning", "error") and "willReadFrequently" not in of["entry"]["text"]:
            # (That one is of this script's own looking at pixels.)
            self.said.append(of["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.said.append(f"dialog: {of['message']}")
        elif method == "Network.requestWillBeSent":
            self.asked.append(of["request"]["url"][:200])
        return message

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write, data):]
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def eval(self, text):
        answer = self.call("Runtime.evaluate", expression=text, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{text}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, text, seconds=120):
        end = time.monotonic() + seconds
        while not self.eval(text):
            if time.monotonic() > end:
                raise RuntimeError(f"not within {seconds} s: {text}")
            time.sleep(0.05)

    def open(self, path, dark=False, width=1400, height=1500):
        self.said.clear(), self.asked.clear()
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        began = time.monotonic()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"file://{path}")
        self.until("document.documentElement?.dataset.draws > 0")
        return time.monotonic() - began

    def draws(self, act):
        """Acts, and waits for the next picture."""
        before = int(self.eval("document.documentElement.dataset.draws"))
        act()
        self.until(f"document.documentElement.dataset.draws > {before}", 20)

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, path):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 4000), "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        try:
            self.call("Browser.close")
        except (RuntimeError, OSError):
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


# How many pixels right of the labels have a colour of their own, no grey.
COLOURED = """(id => { const canvas = document.getElementById(id), data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let at = 0; at < data.length; at += 4) {
    const most = Math.max(data[at], data[at + 1], data[at + 2]), least = Math.min(data[at], data[at + 1], data[at + 2]);
    if (data[at + 3] > 60 && most - least > 40) count++;
  }
  return count; })"""

# What is wrong with a histogram: between two bars, and between two labels of an axis, the distance
# must be as the logarithm, the same everywhere.
HISTOGRAMS = """[...document.querySelectorAll("figure")].flatMap((figure) => {
  const slopes = (points) => points.slice(1).map(([x, y]) => (y - points[0][1]) / (x - points[0][0]));
  const alike = (of, within) => of.every((slope) => Math.abs(slope / of[0] - 1) < within);
  const name = figure.querySelector("figcaption").textContent;
  const bars = [...figure.querySelectorAll("rect")].map((bar) => [parseInt(bar.textContent.replaceAll(",", "")), bar.height.baseVal.value]);
  const differ = [...new Map(bars)].sort((one, other) => one[0] - other[0]).filter(([count]) => count === bars.reduce((least, bar) => Math.min(least, bar[0]), 1e12) || count > 9);
  const ns = { ns: 1, "µs": 1e3, ms: 1e6, s: 1e9 };
  const labels = [...figure.querySelectorAll("text[text-anchor=middle]")].map((label) => {
    const [value, unit] = label.textContent.split(" ");
    return [Math.log2(parseFloat(value) * ns[unit]), label.x.baseVal[0].value];
  });
  const wrong = [];
  if (bars.length < 3 || labels.length < 3) wrong.push(`${name}: ${bars.length} bars, ${labels.length} labels`);
  if (!alike(slopes(differ.map(([count, height]) => [Math.log10(count), height])), 0.05)) wrong.push(`${name}: heights ${JSON.stringify(differ)}`);
  if (!alike(slopes(labels), 0.15)) wrong.push(`${name}: labels ${JSON.stringify(labels)}`);
  return wrong;
})"""
# The table of ranks, its head first.
TABLE = "[...document.querySelectorAll('table tr')].map((row) => [...row.cells].map((cell) => cell.textContent.replaceAll('\u00ad', '')))"
# Above 655 of them the rows are higher than any canvas.
RANKS = 1100
# What this machine takes, in this browser and at this moment, to go through a million numbers ten
# times and enter each where it belongs: milliseconds.
CALIBRATION = """(() => {
  const numbers = new Float64Array(1000000), columns = new Uint32Array(2000);
  for (let at = 0, seed = 1; at < numbers.length; at++) {
    seed = (seed * 48271) % 2147483647;
    numbers[at] = seed / 2147483647;
  }
  const began = performance.now();
  for (let turn = 0; turn < 10; turn++) for (const number of numbers) columns[(number * columns.length) | 0]++;
  return performance.now() - began + columns[0] * 1e-12;
})()"""
# Times that: what a picture of all events may take, and the page's script until the first. Both
# are four times what they were measured to take.
PICTURE, FIRST = 2, 12


def nanoseconds(text):
    value, unit = text.split(" ")
    return float(value) * {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]


def main():
    pinyard, shots = sys.argv[1], (sys.argv[2] if len(sys.argv) > 2 else None)
    if CHROMIUM is None:
        print("skipped: there is no chromium in PATH (Debian: apt install chromium)\n0 passed, 0 failed, 1 skipped")
        return 0
    passed = failed = 0

    def check(name, holds, what=""):
        nonlocal passed, failed
        passed, failed = passed + bool(holds), failed + (not holds)
        print(f"{'ok' if holds else 'FAILED'}: {name}{'' if holds else f': {what}'}", flush=True)

    def shoot(name):
        if shots:
            os.makedirs(shots, exist_ok=True)
            browser.screenshot(os.path.join(shots, f"{name}.png"))

    def report(folder, name, status=0):
        page = os.path.join(work, name)
        done = subprocess.run([pinyard, "report", folder, "-o", page], capture_output=True, text=True)
        check(f"{name}: pinyard report ends with {status}", done.returncode == status, done)
        return page, done

    with tempfile.TemporaryDirectory() as work:
        browser = Browser(os.path.join(work, "profile"))
        try:
            # ---- A million events
            many = os.path.join(work, "many")
            os.makedirs(many)
            for rank in range(4):
                made_up.trace(many, rank, 4, 250_000)
            page, _ = report(many, "many.html")
            took = browser.open(page)
            told = browser.eval("({...document.documentElement.dataset})")
            print(f"1,000,000 events, {os.path.getsize(page) >> 20} MiB: open and drawn after {took:.1f} s, "
                  f"of which the script {told['firstDrawMs']} ms, the first picture {told['drawMs']} ms")
            firsts, calibrations = [float(told["firstDrawMs"])], [browser.eval(CALIBRATION)]
            for _ in range(4):
                browser.open(page)
                firsts.append(float(browser.eval("document.documentElement.dataset.firstDrawMs")))
                calibrations.append(browser.eval(CALIBRATION))
            first = statistics.median(firsts) / statistics.median(calibrations)
            print(f"the first picture of {len(firsts)} times: {first:.1f} calibrations of {statistics.median(calibrations):.0f} ms")
            check("it opens without freezing", first < FIRST, (first, firsts, calibrations))
            check("every event is in the page", told["events"] == "1000000", told)
            for name in ("timeline", "pinned", "live", "slabs"):
                count = browser.eval(f"{COLOURED}('{name}')")
                check(f"there are pixels in {name}", count > 400, count)
            shoot("many-light")
            box = browser.eval("(({left, top, width}) => [left, top, width])(document.getElementById('timeline').getBoundingClientRect())")
            def tips(x, top):
                """What the pointer is told, row by row of the first rank."""
                for row in range(16):
                    for step in range(30):
                        browser.mouse("mouseMoved", x - 300 + 20 * step, top + 40 + 9 * row)
                        yield browser.eval("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent")
            x, y = box[0] + 210 + (box[2] - 210) * 0.5, box[1] + 62
            seen = set()
            for tip in tips(x, box[1]):
                seen.update(kind for kind in ("MPI on device buffers", "registrations", "stream 7") if kind in tip)
                if len(seen) == 3:
                    break
            check("the pointer is told of MPI's calls, of registrations and of a stream's blocks", len(seen) == 3, seen)
            redraws = []
            def timed(act):
                browser.draws(act)
                redraws.append(float(browser.eval("document.documentElement.dataset.drawMs")))
            for _ in range(9):
                timed(lambda: browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300))
            zoomed = browser.eval("({...document.documentElement.dataset})")
            span, near = float(told["to"]) - float(told["from"]), float(zoomed["to"]) - float(zoomed["from"])
            check("the wheel zooms in", near < span / 1000, (span, near))
            middle = (float(zoomed["from"]) + float(zoomed["to"])) / 2
            check("around the pointer", abs(middle - span / 2) < span / 100, (middle, span))
            check("what is out of the window is not drawn", int(zoomed["visible"]) < 5000, zoomed)
            tip = next((tip for tip in tips(x, box[1]) if tip), "")
            check("the pointer is told what it is on", "rank 0" in tip, tip)
            shoot("many-zoomed")
            def drag():
                browser.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
                browser.mouse("mouseMoved", x + 200, y, button="left", buttons=1)
                browser.mouse("mouseReleased", x + 200, y, button="left", clickCount=1)
            timed(drag)
            moved = browser.eval("({...document.documentElement.dataset})")
            check("dragging moves", float(moved["from"]) < float(zoomed["from"]), (moved, zoomed))
            check("and keeps the scale", abs(float(moved["to"]) - float(moved["from"]) - near) < near / 1000, moved)
            browser.eval("document.getElementById('timeline').focus()")
            timed(lambda: browser.call("Input.dispatchKeyEvent", type="keyDown", key="0", text="0"))
            check("0 shows everything", float(browser.eval("document.documentElement.dataset.from")) == 0)
            before = browser.eval(f"{COLOURED}('timeline')")
            browser.draws(lambda: browser.eval("document.querySelector('#legend button').click()"))
            after = browser.eval(f"{COLOURED}('timeline')")
            check("a kind can be hidden", before != after, (before, after))
            timed(lambda: browser.mouse("mouseWheel", x, y, deltaX=300, deltaY=0))
            timed(lambda: browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-30))
            print(f"the page's own account of {len(redraws)} pictures while zooming and moving: "
                  f"{statistics.median(redraws)} ms in the middle, {max(redraws)} ms the longest")
            # All events at once, the slowest picture: out and in again by the wheel, and after each
            # what the machine takes just then, so that other load is on both.
            browser.eval("document.getElementById('timeline').focus()")
            browser.call("Input.dispatchKeyEvent", type="keyDown", key="0", text="0")
            redraws, calibrations = [], []
            for turn in range(9):
                timed(lambda: browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=(-30, 30)[turn % 2]))
                calibrations.append(browser.eval(CALIBRATION))
            whole = statistics.median(redraws) / statistics.median(calibrations)
            print(f"a picture of all events: {statistics.median(redraws)} ms, {whole:.1f} calibrations of {statistics.median(calibrations):.0f} ms")
            check("all events are drawn in these", int(browser.eval("document.documentElement.dataset.visible")) > 500_000,
                  browser.eval("document.documentElement.dataset.visible"))
            check("no zoom and no move freezes the page", whole < PICTURE, (whole, redraws, calibrations))
            wrong = browser.eval(HISTOGRAMS)
            check("both axes of each histogram are logarithmic", wrong == [], wrong)
            table = browser.eval(TABLE)
            check("a row for each rank", [row[0] for row in table[1:]] == [f"rank {at}" for at in range(4)], table)
            check("the ranks' events are all events", sum(int(row[2].replace(",", "")) for row in table[1:]) == 1_000_000, table)
            slow = table[0].index("register, median")
            fences = table[0].index("fences")
            check("every rank has fences", all(int(row[fences].replace(",", "")) > 0 for row in table[1:]), [row[fences] for row in table])
            captions = browser.eval("[...document.querySelectorAll('figcaption')].map((caption) => caption.textContent)")
            for wanted in ("register", "deregister", "MPI bcast", "fence: from drop to reuse", "life of a block"):
                check(f"a histogram of {wanted}", any(wanted in caption for caption in captions), captions)
            labels = browser.eval("JSON.parse(document.getElementById('meta').textContent).lanes.map((lane) => `${lane.rank} ${lane.label ?? lane.name}`)")
            expected = ["MPI 3", "registry verbs 1", "device 2, slabs", *(f"device 2, stream {one}" for one in (7, 13, 21))]
            check("each rank has its rows", sorted(labels) == sorted(f"{rank} {one}" for rank in range(4) for one in expected), labels)
            check("the rank with slow registrations has the highest median",
                  max(table[1:], key=lambda row: nanoseconds(row[slow]))[0] == "rank 1", [row[slow] for row in table])
            check("many.html: the console is silent", not browser.said, browser.said)
            check("many.html: nothing is fetched", all(url.startswith("file://") for url in browser.asked), browser.asked)
            browser.open(page, dark=True)
            shoot("many-dark")
            check("dark: the console is silent", not browser.said, browser.said)
            browser.open(page, width=700)
            check("narrow: nothing is wider than the window", browser.eval("document.documentElement.scrollWidth <= innerWidth"),
                  browser.eval("document.documentElement.scrollWidth"))
            shoot("many-narrow")

            # ---- More ranks than a canvas has pixels for
            wide = os.path.join(work, "wide")
            os.makedirs(wide)
            for rank in range(RANKS):
                made_up.trace(wide, rank, RANKS, 400 if rank == 1000 else 60)
            page, _ = report(wide, "wide.html")
            took = browser.open(page)
            print(f"{RANKS:,} ranks, {os.path.getsize(page) >> 10} KiB: open and drawn after {took:.1f} s, "
                  f"a picture {browser.eval('document.documentElement.dataset.drawMs')} ms")
            sizes = browser.eval("[...document.querySelectorAll('canvas')].map((canvas) => [canvas.id, canvas.width, canvas.height])")
            check("no canvas is larger than browsers have", all(width < 8192 and height < 8192 for _, width, height in sizes), sizes)
            rows = browser.eval("document.getElementById('rows').offsetHeight")
            check("the rows would not fit into one", rows > 32767, rows)
            at_top = browser.eval(f"{COLOURED}('timeline')")
            browser.draws(lambda: browser.eval(f"document.getElementById('scroll').scrollTop = {rows}"))
            at_end = browser.eval(f"{COLOURED}('timeline')")
            check("the first and the last ranks are drawn", at_top > 200 and at_end > 200, (at_top, at_end))
            box = browser.eval("(({left, bottom, width}) => [left, bottom, width])(document.getElementById('timeline').getBoundingClientRect())")
            tips = set()
            # It began last.
            for step in range(20):
                browser.mouse("mouseMoved", box[0] + box[2] - 1 - step, box[1] - 8)
                tips.add(browser.eval("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"))
            check("the pointer is told of the last rank", any(f"rank {RANKS - 1}" in tip for tip in tips), tips)
            table = browser.eval(TABLE)
            marked = browser.eval("[...document.querySelectorAll('td.mark')].map((cell) => cell.parentElement.cells[0].textContent + ', ' + "
                                  "cell.closest('table').rows[0].cells[cell.cellIndex].textContent.replaceAll('\u00ad', ''))")
            check("every rank has its row", len(table) == RANKS + 1, len(table))
            check("what a rank has twice as often as the others is marked",
                  "rank 1000, events" in marked and not any(cell.endswith(", events") and cell != "rank 1000, events" for cell in marked), marked[:20])
            check("wide.html: the console is silent", not browser.said, browser.said)
            shoot("wide")

            # ---- Names that would be markup
            evil = os.path.join(work, "evil")
            os.makedirs(evil)
            path = made_up.trace(evil, 0, 1, 2000, hostile=True)
            os.rename(path, os.path.join(evil, "<img src=x onerror=alert(1)>.trace"))
            page, _ = report(evil, "evil.html")
            browser.open(page)
            check("hostile names make no element", browser.eval("document.querySelectorAll('img, b b, script:not([id]):not(:last-of-type)').length") == 0)
            check("hostile names are shown as text", browser.eval("document.body.textContent.includes('<img src=x onerror=alert(1)>')"))
            check("hostile names run nothing", not browser.said and len(browser.asked) == 1, (browser.said, browser.asked))
            shoot("evil")

            # ---- A file that was cut, one that is none, and an empty run
            cut = os.path.join(work, "cut")
            os.makedirs(cut)
            path = made_up.trace(cut, 0, 2, 3000)
            whole = open(path, "rb").read()
            open(path, "wb").write(whole[: len(whole) // 2])
            made_up.trace(cut, 1, 2, 3000)
            open(os.path.join(cut, "no.trace"), "w").write("what is this\n")
            page, done = report(cut, "cut.html", status=1)
            check("each fault is told with its file and line", "node1-r0-4000.trace: line " in done.stderr and "no.trace: line 1" in done.stderr, done.stderr)
            browser.open(page)
            check("the page says what is missing", browser.eval("document.querySelectorAll('.warning li').length") == 2)
            events = int(browser.eval("document.documentElement.dataset.events"))
            check("what could be read is there", 4000 < events < 5000, events)
            check("cut.html: the console is silent", not browser.said, browser.said)
            shoot("cut")
            empty = os.path.join(work, "empty")
            os.makedirs(empty)
            made_up.trace(empty, 0, 1, 0)
            page, _ = report(empty, "empty.html")
            browser.open(page)
            check("a run without events draws", not browser.said, browser.said)
        finally:
            browser.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
