"""The report, as a browser shows it."""

import html
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from harness import browser
from harness.devtools import Page
from harness.pictures import alike, grey, read_png, write_png
from harness.planted import corrupts, healthy, plant
from tosavk.core.dtypes import DType
from tosavk.differential.diff import DiffRequest, diff
from tosavk.differential.report import command, render
from tosavk.differential.result import DiffResult, Verdict
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

HOSTILE = '<script>alert("x")</script><img src=http://example.com/a.png>'
PHONE = 360
LAYOUT = Path(__file__).parent / "data" / "report-layout.png"
SCALE = 0.1
SEEN = 2400

PROBE = """<script>
const phone = document.documentElement;
for (const details of document.querySelectorAll('details')) details.open = true;
const anchors = [...document.querySelectorAll('a[href^="#"]')];
phone.dataset.anchors = anchors.length;
phone.dataset.broken = anchors.filter(
  a => !document.getElementById(a.getAttribute('href').slice(1))).length;
const stops = [...document.querySelectorAll('a[href], summary, [tabindex="0"]')];
phone.dataset.focusable = stops.filter(
  e => { e.focus(); return document.activeElement === e; }).length;
phone.dataset.stops = stops.length;
phone.dataset.scrollWidth = phone.scrollWidth;
phone.dataset.clientWidth = phone.clientWidth;
phone.dataset.requests = performance.getEntriesByType('resource').length;
phone.dataset.scripts = document.querySelectorAll('script').length - 1;
phone.dataset.images = document.querySelectorAll('img').length;
</script></body>"""


def result_of(patch: pytest.MonkeyPatch, *, agreed: bool) -> DiffResult:
    """A diff of two planted backends and the reference."""
    b = Builder()
    x = b.input("x", DType.FP32, (1, 16, 24))
    y = b.add(x, x, name=HOSTILE)
    for i in range(50):
        y = b.clamp(y, -1.0, 1.0 - i / 100, name=f"a/very/long/layer/name/{i}/Relu")
    b.output(b.exp(y, name="result"))
    bad = healthy if agreed else corrupts(HOSTILE, "result")
    plant(patch, {"left": healthy, "right": bad})
    return diff(
        DiffRequest(
            graph=load_graph(b.build()),
            model=f"models/{HOSTILE}.tosa",
            model_sha256="0" * 64,
            backends=("left", "right", "reference"),
            children=None,
            command=("tosavk", "diff", HOSTILE, "--seed", "0"),
            environment=(("VK_DRIVER_FILES", "/a b/icd.json"),),
        )
    )


@pytest.fixture(params=[True, False], ids=["agreed", "different"])
def result(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> DiffResult:
    found = result_of(monkeypatch, agreed=bool(request.param))
    assert (found.verdict is Verdict.AGREED) == request.param
    return found


class Tags(HTMLParser):
    """Collects tags, and texts by the id they are under."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_one_file_without_scripts_or_links_to_elsewhere(result: DiffResult) -> None:
    page = Tags()
    page.feed(render(result))
    kinds = {tag for tag, _ in page.tags}
    assert not kinds & {"script", "img", "iframe", "object", "embed", "base"}
    for _, attributes in page.tags:
        for name in ("src", "href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:,")), value
    assert "url(" not in render(result)


def test_names_are_text(result: DiffResult) -> None:
    text = render(result)
    assert HOSTILE not in text
    if result.verdict is Verdict.DIFFERENT:
        assert html.escape(HOSTILE, quote=False).partition("&quot;")[0][:12] in text


def test_every_id_is_there_once(result: DiffResult) -> None:
    page = Tags()
    page.feed(render(result))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_command_names_drivers_and_quotes(result: DiffResult) -> None:
    text = command(result)
    assert text.startswith("VK_DRIVER_FILES='/a b/icd.json' tosavk diff '<script>")
    assert html.escape("VK_DRIVER_FILES=") in render(result)


def test_in_a_browser(result: DiffResult, tmp_path: Path) -> None:
    if browser.find_browser() is None:
        pytest.skip("no browser is installed")
    page = tmp_path / "report.html"
    page.write_text(render(result), encoding="utf-8")
    # The report allows no scripts; the copy that is measured has one of ours. The
    # frame has the width of a phone.
    allowed = page.read_text(encoding="utf-8").replace(
        "default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';"
    )
    inner = tmp_path / "inner.html"
    inner.write_text(allowed.replace("</body>", PROBE), encoding="utf-8")
    outer = tmp_path / "outer.html"
    outer.write_text(
        f"<!doctype html><iframe id=f width={PHONE} height=700 "
        f"src={inner.name}></iframe>"
        "<script>addEventListener('message', e => document.body.append(e.data));"
        "</script>",
        encoding="utf-8",
    )
    spoken = inner.read_text(encoding="utf-8").replace(
        "</script></body>",
        "parent.postMessage(JSON.stringify(phone.dataset), '*');</script></body>",
    )
    inner.write_text(spoken, encoding="utf-8")
    dom = browser.rendered_html(outer, tmp_path / "profile")
    found = re.search(r"\{.*\}", html.unescape(dom.rpartition("</script>")[2]))
    assert found, dom[-500:]
    facts = {name: int(value) for name, value in json.loads(found[0]).items()}
    assert facts["scrollWidth"] <= facts["clientWidth"] <= PHONE
    assert facts["anchors"] >= 3
    assert facts["broken"] == 0
    assert facts["focusable"] == facts["stops"] >= 6
    assert facts["requests"] == 0
    assert facts["scripts"] == facts["images"] == 0


def test_the_verdict_is_what_a_browser_shows_first(
    result: DiffResult, tmp_path: Path
) -> None:
    if browser.find_browser() is None:
        pytest.skip("no browser is installed")
    page = tmp_path / "report.html"
    page.write_text(render(result), encoding="utf-8")
    dom = browser.rendered_html(page, tmp_path / "profile")
    body = re.sub(r"<[^>]+>", " ", dom[dom.index("<body") :])
    words = html.unescape(body).split()
    assert result.verdict.value.upper() in words[:12]
    assert ("<svg" in dom) == (result.verdict is Verdict.DIFFERENT)
    if result.verdict is Verdict.DIFFERENT:
        assert "First operator that differs" in dom
        assert "Operators that differ" in dom


def test_without_results_the_report_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> object:
        raise RuntimeError("<b>lost</b>")

    plant(monkeypatch, {"left": healthy, "open_lost": lost})  # type: ignore[dict-item]
    b = Builder()
    b.output(b.exp(b.input("x", DType.FP32, (3,))))
    found = diff(
        DiffRequest(
            graph=load_graph(b.build()),
            model="m",
            backends=("left", "open_lost"),
            children=None,
        )
    )
    text = render(found)
    assert found.verdict is Verdict.FAILED
    assert "FAILED" in text
    assert "&lt;b&gt;lost&lt;/b&gt;" in text


def test_non_finite_errors_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, {"left": healthy, "right": corrupts("y", by=float("inf"))})
    b = Builder()
    b.output(b.exp(b.input("x", DType.FP32, (3, 5)), name="y"))
    found = diff(
        DiffRequest(
            graph=load_graph(b.build()),
            model="m",
            backends=("left", "right", "reference"),
            children=None,
            given={"x": np.zeros((3, 5), np.float32)},
        )
    )
    assert found.verdict is Verdict.DIFFERENT
    assert "inf" in render(found)


STOPS = "[...document.querySelectorAll('a[href], summary, [tabindex=\"0\"]')]"
FOCUS = f"{STOPS}.indexOf(document.activeElement)"


def test_keys_links_and_layout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A person without a mouse gets everywhere, and sees the page as it was made.

    TOSAVK_NEW_LAYOUT=1 keeps the picture as the right one.
    """
    if browser.find_browser() is None:
        pytest.skip("no browser is installed")
    report = tmp_path / "report.html"
    report.write_text(render(result_of(monkeypatch, agreed=False)), encoding="utf-8")
    with Page(tmp_path / "profile") as page:
        page.open(report)
        _check_keys(page)
        _check_links(page)
        page.open(report)
        _check_layout(page)


def _check_keys(page: Page) -> None:
    stops = int(page.ask(f"{STOPS}.filter(e => e.checkVisibility()).length"))
    assert stops >= 12
    visited: list[int] = []
    for _ in range(stops):
        page.press("Tab")
        visited.append(int(page.ask(FOCUS)))
        ring = page.ask("getComputedStyle(document.activeElement).outlineStyle")
        what = page.ask("document.activeElement.outerHTML.slice(0, 100)")
        assert ring != "none", (what, visited, stops)
    # In the order of the page, each once.
    assert visited == sorted(set(visited))
    assert len(visited) == stops
    assert page.ask("document.activeElement.tagName") != "BODY"
    closed = "document.querySelectorAll('details:not([open])').length"
    before = int(page.ask(closed))
    assert before >= 1
    page.ask("document.querySelector('#operators summary').focus()")
    page.press(" ")
    assert int(page.ask(closed)) == before - 1
    page.press("Enter")
    assert int(page.ask(closed)) == before


def _check_links(page: Page) -> None:
    links = int(page.ask("document.querySelectorAll('a[href^=\"#\"]').length"))
    assert links >= 10
    for number in range(links):
        link = f"document.querySelectorAll('a[href^=\"#\"]')[{number}]"
        target = str(page.ask(f"{link}.getAttribute('href')"))
        page.ask(f"scrollTo(0, 0); {link}.focus({{preventScroll: true}})")
        page.press("Enter")
        assert page.ask("location.hash") == target
        place = f"document.querySelector('{target}').getBoundingClientRect()"
        bottom = "scrollY + innerHeight >= document.documentElement.scrollHeight - 2"
        assert page.ask(f"({place}.top >= 0 && {place}.top < 80) || {bottom}"), target


def _check_layout(page: Page) -> None:
    seen = grey(read_png(page.picture(height=SEEN, scale=SCALE)))
    if os.environ.get("TOSAVK_NEW_LAYOUT"):
        LAYOUT.parent.mkdir(exist_ok=True)
        LAYOUT.write_bytes(write_png(seen))
    right = grey(read_png(LAYOUT.read_bytes()))
    assert alike(seen, right) > 0.8
    # What looks otherwise is noticed: the same page without its style.
    page.ask("document.querySelector('style').remove()")
    bare = grey(read_png(page.picture(height=SEEN, scale=SCALE)))
    assert alike(bare, right) < 0.7
