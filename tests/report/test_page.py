import colorsys
import html.parser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fl_lightning.cli import report
from fl_lightning.figures.style import BLUE, ORANGE, apart
from fl_lightning.report import comparison, page
from fl_lightning.report.axes import Scale
from fl_lightning.report.figures import curve_figure
from fl_lightning.runs import reading as loading
from made_runs import make_comparison, make_run

VOID = {"meta", "link", "br"}


class Structure(html.parser.HTMLParser):
    """Checks that what is opened is closed, and gathers what the tests look at."""

    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.tips, self.text = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        self.tips += [value for name, value in attributes if name == "data-tip"]
        if tag not in VOID and tag != "path":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def made(root, problems=()):
    return page.page(comparison.compare(loading.load_all([root])[0]), problems)


def test_page_is_well_formed_and_needs_no_network(tmp_path):
    text = made(make_comparison(tmp_path))
    structure = Structure()
    structure.feed(text)
    assert structure.open == []
    assert all(address.startswith(("#", "data:")) for address in structure.addresses)
    assert "http" not in text
    assert "nan" not in re.sub(r"<script.*", "", text, flags=re.DOTALL).lower().replace("fedavgnan", "")


def test_values_sent_along_are_those_of_the_runs(tmp_path):
    text = made(make_comparison(tmp_path))
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', text).group(1))
    assert data["names"] == ["scaffold", "fedacs", "fedavg"]
    curve = next(one for one in data["charts"]["curve-round"]["s"] if one["i"] == 1)
    tables = [np.genfromtxt(path, delimiter=",", names=True) for path in sorted(tmp_path.glob("fedacs/*/metrics.csv"))]
    np.testing.assert_allclose(curve["m"], np.mean([table["test_accuracy"] for table in tables], axis=0), rtol=1e-3)
    np.testing.assert_allclose(curve["l"], np.min([table["test_accuracy"] for table in tables], axis=0), rtol=1e-3)


def test_of_many_algorithms_the_best_and_the_reference_are_drawn_first(tmp_path):
    few = comparison.compare(loading.load_all([make_comparison(tmp_path / "few", 8, 1)])[0])
    assert page.hidden(few) == []
    many = comparison.compare(loading.load_all([make_comparison(tmp_path / "many", 12, 1)])[0], "fedavg")
    names = [entry.name for entry in many.entries]
    assert names.index("fedavg") >= 5
    shown = [name for place, name in enumerate(names) if place not in page.hidden(many)]
    assert shown == [*names[:5], "fedavg"]
    text = page.page(many)
    assert len(re.findall(r'<button class="chip[^>]*aria-pressed="false"', text)) == 6
    axes = curve_figure(many, "round", "test_accuracy").axes[0]
    assert [line.get_label() for line in axes.lines if line.get_label() in names] == shown
    assert [words.get_text() for words in axes.texts] == [f"target {target:g}" for target in many.targets]
    assert axes.get_xlim() == (1, 30)


def test_findings_say_who_wins_even_if_it_is_not_the_reference(tmp_path):
    said = page.findings(comparison.compare(loading.load_all([make_comparison(tmp_path)])[0]))
    assert said[0].startswith("Best final test accuracy: scaffold")
    assert "fedacs comes 2nd of 3" in said[0]
    assert "0.4 is reached in all seeds by 2 of 3, with the least computation by scaffold" in said[-1]


def test_a_page_of_forty_algorithms_stays_below_a_megabyte(tmp_path):
    for number in range(40):
        for seed in range(3):
            make_run(tmp_path, f"algorithm{number:02}", seed, rounds=400, level=0.3 + number / 60)
    assert len(made(tmp_path).encode()) < 1_000_000


def test_names_cannot_break_out_of_the_page(tmp_path):
    name = """<script>alert(1)"'&x"""
    make_run(tmp_path, name, 0)
    make_run(tmp_path, "fedacs", 0)
    text = made(tmp_path, [loading.Problem(Path("<b>"), "<i>")])
    assert "<script>alert" not in text
    assert "\\u003cscript\\u003ealert" in text
    structure = Structure()
    structure.feed(text)
    assert structure.open == []
    assert structure.text.count(name) >= 4  # legend, label, tables, cards
    assert any(tip.startswith(f"{name}, class 0") for tip in structure.tips)
    assert "<b>" in structure.text


def test_html_is_made_by_templates_alone():
    """Text put into HTML by hand is escaped only if somebody thinks of it."""
    folder = Path(page.__file__).parent
    assert [path.name for path in folder.glob("*.py") if re.search(r"<\w+[ >]", path.read_text())] == ["page.py"]
    assert re.findall(r"\|\s*safe", "".join(path.read_text() for path in folder.glob("templates/*"))) == []


def test_runs_without_accuracy_are_ranked_by_distance(tmp_path):
    for name, level in (("fedacs", 0.6), ("fedavg", 0.3)):
        path = make_run(tmp_path, name, 0, level=level) / "metrics.csv"
        header, *rows = path.read_text().replace("test_loss", "distance").splitlines()
        cells = [row.split(",") for row in rows]
        path.write_text("\n".join([header, *(",".join([row[0], "", *row[2:]]) for row in cells)]) + "\n")
    made_of = comparison.compare(loading.load_all([tmp_path])[0])
    assert (made_of.metric, made_of.targets, made_of.entries[0].name) == ("distance", (), "fedacs")
    assert "distance to the optimum" in page.page(made_of)


@pytest.mark.parametrize("values", [[0.0, 3.0], [1e-7, 2.0], [5.0, 5.0]])
def test_places_stay_on_the_chart(values):
    for scale in (Scale(0.0, 2.0), Scale(1e-6, 1.0, True)):
        share = scale.share(np.array(values))
        assert ((share >= 0) & (share <= 1)).all()


def test_labels_are_moved_apart_within_their_room(rng):
    wanted = rng.uniform(0, 400, 30).tolist()
    placed = apart(wanted, 14, 0, 430)
    order = np.argsort(wanted)
    assert (np.diff(np.array(placed)[order]) >= 14 - 0.02).all()
    assert min(placed) >= 0
    assert max(placed) <= 430


def test_command_writes_everything_and_names_what_it_left_out(tmp_path, capsys):
    make_comparison(tmp_path, 3, 2)
    (tmp_path / "fedavg" / "seed_0" / "summary.json").unlink()
    assert report.main([str(tmp_path), str(tmp_path / "nowhere"), "--logger", "none"]) == 0
    output = capsys.readouterr()
    lines = output.err.splitlines()
    assert len(lines) == 2
    assert any("seed_0: left out: the run is unfinished" in line for line in lines)
    assert any("nowhere: left out: there is no such folder" in line for line in lines)
    out = tmp_path / "report"
    assert "Left out" in (out / "index.html").read_text()
    assert {path.suffix for path in (out / "tables").iterdir()} == {".csv", ".md", ".tex"}
    figures = sorted(path.name for path in (out / "figures").iterdir())
    assert len(figures) == 18
    assert all((out / "figures" / name).stat().st_size > 1000 for name in figures)
    assert "5 runs" in output.out


def test_the_same_runs_give_the_same_files(tmp_path):
    make_comparison(tmp_path / "runs", 2, 2)
    for name in ("one", "two"):
        report.main([str(tmp_path / "runs"), "--out", str(tmp_path / name), "--logger", "none"])
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*")]
    assert len(files) > 20
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def test_report_imports_no_torch(tmp_path):
    make_comparison(tmp_path, 2, 2)
    code = (
        "import sys; from fl_lightning.cli.main import main; "
        f"code = main(['report', {str(tmp_path)!r}, '--no-figures', '--logger', 'none']); "
        "sys.exit(code or ('torch' in sys.modules) or ('matplotlib' in sys.modules))"
    )
    root = Path(__file__).resolve().parents[2]
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=root, check=False, stdout=subprocess.DEVNULL).returncode == 0
    )


@pytest.mark.parametrize("targets", ["x", "nan", "0.5,2", "-1"])
def test_bad_targets_are_refused(targets, tmp_path):
    make_comparison(tmp_path, 1, 1)
    with pytest.raises(ValueError, match="--targets"):
        report.main([str(tmp_path), "--targets", targets])


def _hue(colour):
    return colorsys.rgb_to_hsv(*bytes.fromhex(colour.lstrip("#")))[0]


def test_fedacs_is_blue_and_fedavg_orange_in_all_pictures(tmp_path):
    for reference in ("fedacs", "fedavg", "scaffold"):
        made_of = comparison.compare(loading.load_all([make_comparison(tmp_path / reference)])[0], reference)
        chosen = dict(zip([entry.name for entry in made_of.entries], page.colours(made_of), strict=True))
        assert (chosen["fedacs"], chosen["fedavg"]) == ((0, ""), (1, ""))
        lines = {
            line.get_label(): line.get_color() for line in curve_figure(made_of, "round", "test_accuracy").axes[0].lines
        }
        assert (lines["fedacs"], lines["fedavg"]) == (BLUE, ORANGE)
    css = (Path(page.__file__).parent / "page.css").read_text()
    for blue, orange in re.findall(r"--c0: #(\w+); --c1: #(\w+);", css):
        assert _hue(blue) == pytest.approx(_hue(BLUE), abs=0.03)
        assert _hue(orange) == pytest.approx(_hue(ORANGE), abs=0.02)  # no red
    many = comparison.compare(loading.load_all([make_comparison(tmp_path / "many", 12, 1)])[0])
    assert len(set(page.colours(many))) == 12


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A real browser on the page of a comparison, with everything it says on its console."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no browser: chromium and chromedriver are wanted")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    folder = tmp_path_factory.mktemp("browser")
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1200,900",
    ):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={folder / 'profile'}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    runs = make_comparison(folder / "runs", 12)
    report.main([str(runs), "--no-figures", "--logger", "none"])
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    found.get((runs / "report" / "index.html").as_uri())
    yield found
    found.quit()


def elements(browser, selector):
    return browser.find_elements("css selector", selector)


def press(browser, selector):
    browser.execute_script("arguments[0].click()", elements(browser, selector)[0])


def visible(browser, selector):
    return [one for one in elements(browser, selector) if one.value_of_css_property("display") != "none"]


@pytest.mark.slow
def test_browser_shows_values_on_hover(browser):
    from selenium.webdriver import ActionChains

    plot = elements(browser, ".plot[data-chart='curve-round']")[0]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
    assert visible(browser, "#tip") == []
    ActionChains(browser).move_to_element(plot).perform()
    said = visible(browser, "#tip")[0].text
    assert re.search(r"rounds 1[456]\b", said)
    assert re.search(r"0\.\d{3} \(0\.\d{3} to 0\.\d{3}\)", said)
    cell = elements(browser, "#classes td.h")[0]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", cell)
    ActionChains(browser).move_to_element(cell).perform()
    assert "class 0: 0.000" in visible(browser, "#tip")[0].text


@pytest.mark.slow
def test_browser_dims_all_but_the_hovered_one(browser):
    from selenium.webdriver import ActionChains

    chip = elements(browser, ".legend .chip[data-e='2']")[0]
    press(browser, "[data-show=all]")
    browser.execute_script("scrollTo({top: 0, behavior: 'instant'})")
    ActionChains(browser).move_to_element(chip).perform()
    opacities = {
        place: float(elements(browser, f"#curve-round path.line.e{place}")[0].value_of_css_property("opacity"))
        for place in (2, 3, 7)
    }
    assert opacities[2] == 1
    assert max(opacities[3], opacities[7]) < 0.2


@pytest.mark.slow
def test_browser_hides_and_shows_on_click(browser):
    browser.execute_script("scrollTo({top: 0, behavior: 'instant'})")
    chip = elements(browser, ".legend .chip[data-e='3']")[0]
    before = len(visible(browser, "#curve-round path.line"))
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert len(visible(browser, "#curve-round path.line")) == before - 1
    assert visible(browser, ".card.e3") == []
    assert visible(browser, "tr.r3")
    chip.click()
    assert len(visible(browser, "#curve-round path.line")) == before


@pytest.mark.slow
def test_browser_draws_few_at_first_and_all_on_demand(browser):
    press(browser, "[data-show=few]")
    assert len(visible(browser, "#curve-round path.line")) == 5  # FedACS is among the best
    places = sorted(label.location["y"] for label in visible(browser, "#curve-round .label"))
    assert len(places) == 5
    assert min(np.diff(places)) >= 13
    press(browser, "[data-show=all]")
    assert len(visible(browser, "#curve-round path.line")) == 12
    assert len(visible(browser, "#final tr.r11 td")) == len(visible(browser, "#final tr.r0 td"))


@pytest.mark.slow
def test_browser_smooths_and_goes_back(browser):
    def shape():
        return elements(browser, "#curve-round path.line.e0")[0].get_attribute("d")

    def roughness():
        heights = np.array([float(word.split()[1]) for word in re.findall(r"[\d.]+ [\d.]+", shape())])
        return np.abs(np.diff(heights, 2)).sum()

    press(browser, "[data-smooth='20']")
    smooth = roughness()
    press(browser, "[data-smooth='0']")
    assert smooth < 0.5 * roughness()


@pytest.mark.slow
def test_browser_sorts_tables_by_their_headings(browser):
    def column(index):
        return [row.find_elements("css selector", "td")[index].text for row in elements(browser, "#final tbody tr")]

    button = next(one for one in elements(browser, "#final th button") if one.text == "best")
    place = [head.text for head in elements(browser, "#final th")].index("best")
    before = column(0)
    browser.execute_script("arguments[0].click()", button)
    values = [float(text.split()[0]) for text in column(place)]
    assert values == sorted(values, reverse=True)
    browser.execute_script("arguments[0].click()", button)
    assert [float(text.split()[0]) for text in column(place)] == sorted(values)
    browser.execute_script("arguments[0].click()", elements(browser, "#final th button")[0])
    assert column(0) == sorted(before)


@pytest.mark.slow
def test_browser_finds_nothing_wider_than_a_phone(browser):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 380, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    )
    width = browser.execute_script("return document.documentElement.scrollWidth")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert width <= 380


@pytest.mark.slow
def test_browser_has_nothing_to_complain_about(browser):
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def test_the_gallery_shows_todays_page(tmp_path):
    """Its numbers come from runs of minutes; all else is what the report makes today."""
    gallery = (Path(__file__).parents[2] / "docs" / "gallery" / "digits.html").read_text()
    files = Path(page.__file__).parent
    stale = [name for name in ("page.css", "page.js") if (files / name).read_text().strip() not in gallery]
    assert stale == [], "make it anew: python -m benchmarks.reproduction gallery"
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f"fl-lightning {re.search('version = .([0-9.]+)', project)[1]}" in gallery
    assert (
        report.main([str(make_comparison(tmp_path / "runs")), "--out", str(tmp_path / "report"), "--no-figures"]) == 0
    )
    titles = re.compile(r"<h2[^>]*>(.*?)</h2>")
    missing = {*titles.findall((tmp_path / "report" / "index.html").read_text())} - {*titles.findall(gallery)}
    assert missing == set()
