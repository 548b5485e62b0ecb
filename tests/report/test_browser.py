"""The page in a real browser.

Run by `make test-browser`. Where there is no browser these tests fail, and say what is missing.
"""

import statistics
import urllib.parse

import pytest
from tests.chromium import chromium, set_size
from tests.report import pages

pytestmark = pytest.mark.browser

WIDE, NARROW = (1400, 1000), (400, 800)


@pytest.fixture(scope="module")
def driver():
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    names = ("troubled", "hostile", "extreme", "large", "deep", "many_heads", "many_findings", "empty", "healthy")
    return {name: getattr(pages, name)().write(folder / f"{name}.html") for name in names}


@pytest.fixture
def browser(driver, written):
    """Opens pages; after the test, nothing may have been written to the console."""
    driver.get_log("browser")
    yield Browser(driver, written)
    assert [entry["message"] for entry in driver.get_log("browser")] == []


class Browser:
    def __init__(self, driver, written):
        self.driver, self.written = driver, written

    def open(self, name, *, size=WIDE, scheme="light", path=""):
        set_size(self.driver, *size, scheme=scheme)
        self.driver.get("about:blank")
        anchor = "#" + urllib.parse.quote(path, safe="") if path else ""
        self.driver.get(self.written[name].as_uri() + anchor)
        return self

    def js(self, code, *args):
        return self.driver.execute_script(code, *args)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector):
        return [element.text for element in self.all(selector)]

    def until(self, condition):
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 5).until(lambda _: condition())

    @property
    def shown(self):
        """The path of the site that is shown."""
        return self.js("return document.getElementById('site-title').textContent")

    def keys(self, *keys):
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    @property
    def focused(self):
        return self.js("return document.activeElement.getAttribute('aria-label') || document.activeElement.id")


def test_findings_come_first_and_lead_to_their_site(browser):
    page = browser.open("troubled")
    assert page.texts("h1") == ["A troubled model"]
    badges = [text.split()[-1] for text in page.texts(".findings .badge")]
    assert badges == sorted(badges, key=["problem", "warning", "note"].index) and badges[0] == "problem"
    link = next(e for e in page.all(".findings .link") if e.text == "Show blocks/0/mlp")
    link.click()
    assert page.shown == "blocks/0/mlp"
    top = page.js("return document.getElementById('site').getBoundingClientRect().top")
    assert -2 <= top <= 600
    assert page.js("return document.activeElement.id") == "site-title"
    assert "never fire" in page.texts("#site .about")[-1]
    assert page.js("return decodeURIComponent(location.hash)") == "#blocks/0/mlp"


def test_a_link_to_a_site_opens_it(browser):
    assert browser.open("troubled", path="blocks/3/out").shown == "blocks/3/out"


def test_a_link_to_a_site_opens_it_after_the_page_was_loaded(browser):
    page = browser.open("troubled", path="blocks/3/out")
    page.js("location.hash = encodeURIComponent('blocks/2/out')")
    page.until(lambda: page.shown == "blocks/2/out")
    page.js("location.hash = 'findings'")  # a part of the page, not a site
    assert page.shown == "blocks/2/out"


def test_statistics_histograms_and_gradients(browser):
    page = browser.open("troubled", path="blocks/2/out")
    assert page.texts("#site .sides h3") == ["Value", "Gradient"]
    assert len(page.all("#site .sides svg[role=img][aria-label^=Histogram]")) == 2
    assert "mean" in page.texts("#site .stats")[0]


def test_attention_maps_and_feature_maps(browser):
    page = browser.open("troubled", path="blocks/0/attn/weights")
    labels = [e.get_attribute("aria-label") for e in page.all("#site canvas.map")]
    assert labels == [f"Attention weights of example {e}, head {h}" for e in (0, 1) for h in (0, 1)]
    colors = page.js(
        "const c = document.querySelector('#site canvas.map');"
        "return new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"
    )
    assert colors > 20  # a picture, not a flat field
    page.open("troubled", path="stem/features")
    assert len(page.all("#site canvas.map[aria-label^='Feature map']")) == 12


def test_loops_show_their_iterations(browser):
    page = browser.open("troubled", path="steps")
    assert "Over iterations" in page.texts("#site h3")
    (chart,) = page.all("#site .wide svg[aria-label^='Scale of steps from iteration 0 to iteration 8']")
    crosses = page.js("return arguments[0].querySelectorAll('path[stroke=\"var(--missing)\"]').length", chart)
    assert crosses == 3  # iterations 6, 7 and 8 are infinite


def test_flow_over_a_family_and_a_click_on_it(browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.support.ui import Select

    page = browser.open("troubled")
    choice = Select(page.all("#flow-choice")[0])
    choice.select_by_visible_text("blocks/*/out")
    assert "6 sites" in page.all("#flow svg")[0].get_attribute("aria-label")
    (hit,) = page.all("#flow .hit")
    page.js("arguments[0].scrollIntoView({block: 'center'})", hit)
    ActionChains(page.driver).move_to_element_with_offset(hit, hit.rect["width"] // 2 - 3, 0).perform()
    assert page.texts("#tip")[0].startswith("blocks/5/out\nvalue rms: ")
    ActionChains(page.driver).click().perform()
    assert page.shown == "blocks/5/out"
    page.all("#flow summary")[0].click()
    page.until(lambda: len(page.all("#flow tbody tr")) == 6)  # the browser tells of an opened element a moment later


def test_tree_by_keyboard(browser):
    from selenium.webdriver.common.keys import Keys

    page = browser.open("troubled", path="stem/features")
    page.js("document.querySelector('#tree [tabindex=\"0\"]').focus()")
    assert page.focused == "stem/features"
    page.keys(Keys.ARROW_DOWN)
    assert page.focused == "blocks, warning"
    page.keys(Keys.ARROW_LEFT, Keys.ARROW_DOWN)  # closed, so the next is not inside
    assert page.focused == "steps, problem"
    page.keys(Keys.ARROW_UP, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.END)
    assert page.focused == "steps, problem"
    page.keys(Keys.ENTER)
    assert page.shown == "steps"
    page.js("document.querySelector('#tree [tabindex=\"0\"]').focus()")
    page.keys(Keys.HOME, " ")
    assert page.shown == "stem/features"
    assert len(page.all("#tree [aria-selected=true]")) == 1


def test_filter(browser):
    from selenium.webdriver.common.keys import Keys

    page = browser.open("troubled")
    box = page.all("#filter")[0]
    box.send_keys("3 ATTN")
    assert page.texts("#filter-count") == ["2 of 26"]
    box.send_keys(Keys.ENTER)
    assert page.shown == "blocks/3/attn/scores"
    box.send_keys("zzz")
    assert page.texts("#tree-empty") == ["No site has “3 ATTNzzz” in its path."]
    box.send_keys(Keys.CONTROL + "a")
    box.send_keys(Keys.BACKSPACE)
    assert page.texts("#filter-count") == ["26"]


def test_panels(browser):
    page = browser.open("troubled")
    assert page.texts("#panels h3") == ["What this is", "Training", "Patching", "The induction head"]
    heat = page.all("#panels svg[aria-label^='Patching: 2 rows and 4 columns']")[0]
    assert "0.93" in heat.text and "head 1" in heat.text
    assert page.texts("#panels figcaption")[0].startswith("The loss on the batch")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize("name", ["troubled", "hostile", "empty", "healthy"])
def test_nothing_sticks_out_and_text_can_be_read(browser, name, size, scheme):
    page = browser.open(name, size=size, scheme=scheme)
    assert page.js("return document.documentElement.scrollWidth") <= size[0]
    background, color = page.js(
        "const s = getComputedStyle(document.body);"
        "return [s.backgroundColor, s.color].map((c) => c.match(/\\d+/g).map(Number))"
    )
    assert contrast(background, color) > 10
    assert (sum(background) < 200) == (scheme == "dark")
    for badge in page.all(".badge"):
        pair = [badge.value_of_css_property(p) for p in ("background-color", "color")]
        assert contrast(*[[int(x) for x in c.split("(")[1].rstrip(")").split(",")[:3]] for c in pair]) > 4.5


def contrast(a, b):
    def luminance(c):
        parts = [x / 255 / 12.92 if x <= 10 else ((x / 255 + 0.055) / 1.055) ** 2.4 for x in c]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    light, dark = sorted([luminance(a), luminance(b)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_largest_numbers_are_drawn(browser):
    page = browser.open("extreme")
    panels = page.all("#panels .card")
    assert len(panels) == 18 and all(panel.find_elements("css selector", "svg.chart") for panel in panels)
    assert "NaN" not in page.js("return document.getElementById('panels').innerHTML")


def test_hostile_names_stay_text(browser):
    page = browser.open("hostile")
    for path in pages.NASTY:
        page.js(
            "for (const li of document.querySelectorAll('[role=treeitem]'))"
            "if (li.node.path === arguments[0]) li.firstChild.click()",
            path,
        )
        assert page.shown == path
    assert page.js("return window.hacked") is None
    assert page.all("img, #page b, script[src]") == []
    assert page.driver.title == pages.NASTY[0]
    assert "<i>part</i>" in page.texts("#site .part > h3")


def test_nothing_is_requested(browser):
    page = browser.open("troubled", path="blocks/0/attn/weights")
    assert page.js("return performance.getEntriesByType('resource').map(r => r.name)") == []


def test_empty_and_healthy_pages_say_so(browser):
    page = browser.open("empty")
    assert page.texts("#tree-empty") == ["The program has no sites."]
    assert "the program has no sites" in page.texts(".findings")[0]
    assert "Nothing wrong was found" in browser.open("healthy").texts("#findings-body")[0]


def test_many_findings_are_shown_on_request(browser):
    page = browser.open("many_findings")
    assert len(page.all(".findings > li")) == 12
    (more,) = page.all(".more")
    assert more.text == "Show 8 more findings"
    more.click()
    assert len(page.all(".findings > li")) == 20 and not page.all(".more")


def test_500_sites_answer_a_click_within_100_ms(browser):
    page = browser.open("large")
    assert page.texts("#filter-count") == ["500"]
    times = page.driver.execute_async_script("""
        const done = arguments[0];
        const items = [...document.querySelectorAll('[role=treeitem]')].filter((li) => li.node.site);
        const times = [];
        function next() {
          if (times.length === 25) return done(times);
          const start = performance.now();
          items[(times.length * 97) % items.length].firstChild.click();
          // The first frame after the click draws it; when the second begins, it is on the screen.
          requestAnimationFrame(() => requestAnimationFrame(() => {
            times.push(performance.now() - start);
            setTimeout(next, 10);
          }));
        }
        next();
    """)
    assert len(times) == 25
    assert statistics.median(times) < 100, times


def test_a_deep_model_begins_with_its_layers(browser):
    page = browser.open("deep")
    assert page.texts("#filter-count") == ["270"]
    assert "blocks/*/out: 30 sites" in page.all("#flow svg")[0].get_attribute("aria-label")
    (overview,) = page.all("#heads svg")
    assert overview.get_attribute("aria-label").startswith("attention to the token before by layer and head: 30 rows")
    page.all("#heads details")[0].find_element("css selector", "summary").click()
    page.until(lambda: len(page.all("#heads tbody tr")) == 30 and len(page.all("#heads tbody td")) == 360)


def test_a_slider_goes_from_layer_to_layer(browser):
    page = browser.open("deep", path="blocks/7/attn/weights")
    assert page.texts("#layer-at") == ["7 (8 of 30)"]
    page.js("const s = document.getElementById('layer'); s.value = 29; s.dispatchEvent(new Event('input'))")
    assert page.shown == "blocks/29/attn/weights" and page.texts("#layer-at") == ["29 (30 of 30)"]


def test_attention_has_all_heads_tokens_numbers_and_code(browser):
    from selenium.webdriver.common.action_chains import ActionChains

    page = browser.open("deep", path="blocks/7/attn/weights")
    maps = page.all("#site canvas.map")
    assert len(maps) == 12 and "All 12 heads." in page.texts("#site figcaption")[-1]
    page.js("arguments[0].scrollIntoView({block: 'center'})", maps[2])
    ActionChains(page.driver).move_to_element_with_offset(maps[2], -maps[2].rect["width"] // 2 + 3, 3).perform()
    assert page.texts("#tip")[0].startswith('head 2\nquery 6 "quick", key 0 "The": ')
    maps[2].click()
    (zoom,) = page.all("#site .zoom")
    assert "blocks/7/attn/weights, head 2" in zoom.text
    labels = [text.text for text in zoom.find_elements("css selector", "svg text")]
    assert all(token in labels for token in pages.TOKENS)
    for summary in zoom.find_elements("css selector", "summary"):
        summary.click()
    page.until(lambda: len(zoom.find_elements("css selector", "tbody tr")) == len(pages.TOKENS))
    value = pages.deep().pictures
    head = next(p for p in value if p.path == "blocks/7/attn/weights").values[0, 2]
    shown = zoom.find_elements("css selector", "tbody tr:last-child td")[-1].text
    assert float(shown) == pytest.approx(head[-1, -1], rel=1e-3)
    assert 'records["blocks/7/attn/weights"].value[2]' in zoom.find_element("css selector", "pre").text


def test_long_names_are_told_apart(browser):
    page = browser.open("many_heads")
    labels = [text.split("…") for text in page.texts("svg.chart text") if "…" in text]
    assert [(first[:16], last[-7:]) for first, last in labels] == [
        ("decoder/blocks/3", "/kernel"),
        ("decoder/blocks/4", "ut/bias"),
    ]
    whole = page.js("return [...document.querySelectorAll('svg.chart text title')].map((title) => title.textContent)")
    assert whole == list(pages.LONG)


def test_pictures_say_how_many_heads_are_not_drawn(browser):
    page = browser.open("many_heads", path="weights")
    assert len(page.all("#site canvas.map")) == 64
    assert "64 of 80 heads; 16 are not drawn." in page.texts("#site figcaption")[-1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_a_deep_page_fits(browser, size, scheme):
    page = browser.open("deep", size=size, scheme=scheme, path="blocks/7/attn/weights")
    page.all("#site canvas.map")[0].click()
    assert page.js("return document.documentElement.scrollWidth") <= size[0]
    wide = page.js("return [...document.querySelectorAll('main svg, main canvas')].map((e) => e.clientWidth)")
    assert max(wide) <= size[0]
