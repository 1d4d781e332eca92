"""HTML pages: self-contained, escaped, and right in a browser where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from ortlock import ReproducibleSession
from ortlock.cli import main
from ortlock.compare.run import Compared, compare
from ortlock.html import comparison_page, report_page
from ortlock.html.layout import draw
from ortlock.localise import Graph
from tests.cpu.planted import CPU, FaultyMaker, chain, serialized
from tests.cpu.test_compare import plain

FEED = {"x": np.linspace(-1, 1, 64, dtype=np.float32)}
EVIL = "<script>document.title='taken'</script>\"'&"
_VOID = {"meta", "link", "input"}


class Page(HTMLParser):
    """What a page is made of; an element that is not closed properly fails."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.references: list[str] = []
        self.cells: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        if tag == "td":
            self.cells.append("")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] == "td":
            self.cells[-1] += data


def evil_model() -> bytes:
    model = onnx.load_model_from_string(chain(6))
    model.graph.node[2].name = EVIL
    return bytes(model.SerializeToString())


def verified() -> tuple[ReproducibleSession, bytes]:
    model = evil_model()
    session = ReproducibleSession(model, providers=[CPU])
    session.verify(FEED, runs=2, stresses=("again", "threads"))
    return session, model


def test_a_report_is_one_page_that_needs_no_network() -> None:
    session, model = verified()
    text = session.report().to_html(model=model)
    page = Page(text)
    assert page.references == ["data:,"]
    assert "http://" not in text
    assert "https://" not in text
    assert page.counts["rect"] == 7
    assert page.counts["line"] == 6
    assert page.counts["script"] == 1
    for said in ("Reproducibility: bitwise", "by construction", "again", "2 runs, 1 distinct", "prefers-color-scheme"):
        assert said in text
    assert "graph_optimization_level" in page.cells


def test_names_of_nodes_are_text() -> None:
    session, model = verified()
    page = Page(session.report().to_html(model=model))
    assert EVIL in page.text
    found = compare(Compared(EVIL, FaultyMaker(model, "t2", steady=True), model), plain(model), FEED)
    page = Page(comparison_page(found, model))
    assert page.counts["script"] == 1
    assert f"{EVIL} (Neg)" in page.cells


def test_a_comparison_shows_where_it_begins() -> None:
    model = chain(6)
    found = compare(Compared("faulty", FaultyMaker(model, "t2", steady=True), model), plain(model), FEED)
    text = comparison_page(found, model)
    page = Page(text)
    assert "Comparison: not expected" in text
    assert text.count('<rect class="wrong"') == 1
    assert text.count('<rect class="inherited"') == 4
    assert text.count('<rect class="same"') == 2
    assert "n2 (Neg) on A (faulty) is off by" in page.text
    assert text.count('class="plot"') == 6  # the output and five nodes
    assert "further off than rounding allows (1)" in page.text


def test_a_node_that_differs_is_marked() -> None:
    from tests.cpu.test_pytest_plugin import drawing

    model = drawing()
    session = ReproducibleSession(model, providers=[CPU], mode="observe")
    session.verify(FEED, runs=2, stresses=("again",))
    text = session.report().to_html(model=model)
    assert text.count('<rect class="culprit"') == 1
    assert "first node that differs: draw (RandomNormalLike)" in text
    assert 'class="plot"' in text


def test_without_a_model_there_is_no_picture(tmp_path: Path) -> None:
    session, _ = verified()
    assert "rect" not in Page(session.report().to_html()).counts
    path = tmp_path / "m.onnx"
    path.write_bytes(chain(3))
    session = ReproducibleSession(str(path), providers=[CPU])
    assert Page(report_page(session.report())).counts["rect"] == 4
    path.write_bytes(chain(4))  # another one by now
    assert "rect" not in Page(report_page(session.report())).counts


def test_nodes_are_placed_in_columns() -> None:
    drawing = draw(Graph(chain(3)), lambda node: ("same", "x"), {"same": "same bits", "other": "none"})
    assert [box.x for box in drawing.boxes] == [8, 30, 52, 74]
    assert {box.y for box in drawing.boxes} == {8}
    assert drawing.legend == (("same", "same bits", 4),)
    assert (drawing.width, drawing.height) == (104, 38)


def test_a_long_graph_goes_on_in_the_next_line() -> None:
    drawing = draw(Graph(chain(2000)), lambda node: ("same", "x"), {"same": "same bits"})
    assert len(drawing.boxes) == 2001
    # 38 lines of 53 columns, each 22 high and 10 apart.
    assert (drawing.width, drawing.height) == (1182, 8 + 38 * 22 + 37 * 10 + 8)
    assert [(box.x, box.y) for box in drawing.boxes[52:54]] == [(8 + 52 * 22, 8), (8, 40)]
    assert max(box.y for box in drawing.boxes) == 8 + 37 * 32
    assert len(drawing.edges) == 2000 - 37
    assert all(y == to_y for _, y, _, to_y in drawing.edges)


def test_constants_are_left_out_and_what_needs_only_them_stands_beside_its_use() -> None:
    nodes = [
        helper.make_node("Constant", [], ["c"], name="constant", value_float=2.0),
        helper.make_node("Neg", ["c"], ["scale"], name="scale"),
        helper.make_node("Neg", ["x"], ["a"], name="a"),
        helper.make_node("Neg", ["a"], ["b"], name="b"),
        helper.make_node("Mul", ["b", "scale"], ["y"], name="y"),
    ]
    drawing = draw(Graph(serialized(nodes, [4])), lambda node: ("same", "x"), {"same": "same bits"})
    assert {box.title.split()[0]: (box.x, box.y) for box in drawing.boxes} == {
        "scale": (30, 8),
        "a": (8, 8),
        "b": (30, 30),
        "y": (52, 8),
    }
    assert drawing.legend == (("same", "same bits", 4),)
    assert len(drawing.edges) == 3


def test_the_commands_write_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = tmp_path / "m.onnx", tmp_path / "page.html"
    path.write_bytes(chain(3))
    quick = ("--provider", "cpu", "--runs", "1", "--stress", "again")
    assert main(["verify", str(path), *quick, "--html", str(page)]) == 0
    assert Page(page.read_text()).counts["rect"] == 4
    assert main(["compare", str(path), "--a", "cpu", "--b", "cpu,threads=1", "--html", str(page)]) == 0
    assert "Comparison: same bits" in page.read_text()
    assert main(["verify", str(path), *quick, "--html", str(tmp_path / "none" / "page.html")]) == 2
    assert "cannot be written: there is no folder " in capsys.readouterr().err


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

CHECK = """
<script>
const section = [...document.querySelectorAll("section")].find(s => s.querySelector("h2").textContent === "Nodes");
const button = section.querySelectorAll("th button")[0];
const column = () => [...section.querySelectorAll("tbody tr")].map(row => row.cells[0].textContent).join(" ");
button.click(); button.click();
const sorted = column();
const search = section.querySelector("input");
search.value = "N4 neg"; search.dispatchEvent(new Event("input"));
const shown = [...section.querySelectorAll("tbody tr")].filter(row => !row.hidden).length;
const outside = [...document.querySelectorAll("td, .chip, pre, .plot, .stress span")]
  .filter(box => box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).display !== "inline").length;
document.body.insertAdjacentHTML("beforeend", `<p id="seen">sorted ${sorted}; shown ${shown}; outside ${outside}</p>`);
</script>
"""


WIDTH = """
<script>
const root = document.documentElement;
document.body.insertAdjacentHTML("beforeend", `<p id="seen">beyond ${root.scrollWidth - root.clientWidth}</p>`);
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no browser was found on the path (Chromium or Chrome)")
@pytest.mark.parametrize("kind", ["report", "comparison"])
def test_in_a_narrow_browser(tmp_path: Path, kind: str) -> None:
    model = chain(120)
    if kind == "report":
        session = ReproducibleSession(model, providers=[CPU])
        session.verify(FEED, runs=2, stresses=("again", "threads"))
        text = session.report().to_html(model=model)
        assert text.count('class="stress"') == 2
    else:
        found = compare(Compared("faulty", FaultyMaker(model, "t2", steady=True), model), plain(model), FEED)
        text = comparison_page(found, model)
        assert 'class="plot"' in text
    inner = tmp_path / "inner.html"
    inner.write_text(text.replace("</body>", f"{WIDTH}</body>"))
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--window-size=360,900", "--dump-dom", inner.as_uri()]
    seen = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 'id="seen">beyond 0<' in seen.stdout


@pytest.mark.skipif(BROWSER is None, reason="no browser was found on the path (Chromium or Chrome)")
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(tmp_path: Path, dark: bool) -> None:
    model = chain(12)
    found = compare(Compared("faulty", FaultyMaker(model, "t2", steady=True), model), plain(model), FEED)
    page = tmp_path / "page.html"
    page.write_text(comparison_page(found, model).replace("</body>", f"{CHECK}</body>"))
    kept = Path(os.environ.get("ORTLOCK_SCREENSHOTS", str(tmp_path)))
    picture = kept / f"comparison-{'dark' if dark else 'light'}.png"
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--enable-logging=stderr", "--window-size=1280,1600"]
    command += ["--blink-settings=preferredColorScheme=0"] if dark else []
    seen = subprocess.run([*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, check=True)
    assert "sorted 12 11 10 9 8 7 6 5 4 3 2 1 0; shown 1; outside 0" in seen.stdout
    assert "CONSOLE" not in seen.stderr
    subprocess.run([*command, f"--screenshot={picture}", page.as_uri()], capture_output=True, check=True)
    assert picture.stat().st_size > 10_000
