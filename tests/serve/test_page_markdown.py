"""Markdown on the page: read like the reference parser, and safe and fast for any text."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import pytest
from browsing import opened, until
from markdown_it import MarkdownIt
from running import Running

if TYPE_CHECKING:
    from playwright.sync_api import Page

# HTML of texts, without what the page adds: title and button of code, boxes that scroll, attributes of links.
SHOWN = """async (texts) => {
    const { MarkdownView } = await import("/static/markdown.js");
    return texts.map((text) => {
        const shown = document.createElement("div");
        new MarkdownView(shown).show(text);
        for (const block of shown.querySelectorAll(".code")) {
            const language = block.querySelector(".title span").textContent;
            if (language) block.querySelector("code").className = `language-${language}`;
            block.replaceWith(block.querySelector("pre"));
        }
        for (const scroll of shown.querySelectorAll(".scroll")) scroll.replaceWith(scroll.firstChild);
        for (const link of shown.querySelectorAll("a")) {
            for (const name of ["target", "rel", "title"]) link.removeAttribute(name);
        }
        return shown.innerHTML;
    });
}"""
# Whether a text shown character by character ends like the whole text, and keeps its first element when more follows.
STREAMED = """async (texts) => {
    const { MarkdownView } = await import("/static/markdown.js");
    return texts.map((text) => {
        const [streamed, whole] = [document.createElement("div"), document.createElement("div")];
        const view = new MarkdownView(streamed);
        for (let end = 0; end <= text.length; end += 1) view.show(text.slice(0, end));
        new MarkdownView(whole).show(text);
        const first = streamed.firstChild;
        view.show(`${text}\\n\\nmore`);
        return [streamed.firstChild === first, streamed.innerHTML.startsWith(whole.innerHTML)];
    });
}"""
# Names of the elements and attributes that a text becomes, its links, its depth, and milliseconds until it is shown.
SURVEY = """async (text) => {
    const { MarkdownView } = await import("/static/markdown.js");
    const shown = document.createElement("div");
    const start = performance.now();
    new MarkdownView(shown).show(text);
    const ms = performance.now() - start;
    const formulas = [...shown.querySelectorAll(".katex *")];
    const all = [...shown.querySelectorAll("*")].filter((one) => !one.closest(".katex"));
    const depth = (one) => (one === shown ? 0 : 1 + depth(one.parentElement));
    return {
        ms,
        tags: [...new Set(all.map((one) => one.localName))],
        attributes: [...new Set(all.flatMap((one) => one.getAttributeNames()))],
        inFormulas: [...new Set(formulas.map((one) => one.localName))],
        links: [...shown.querySelectorAll("a")].map((one) => [one.protocol, one.rel]),
        depth: Math.max(0, ...all.slice(-2000).map(depth)),
    };
}"""
TAGS = {"a", "blockquote", "button", "code", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p"}
TAGS |= {"pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"}
ATTRIBUTES = {"class", "href", "rel", "target", "title", "type", "start", "style"}
TEXTS = [
    "# One\n\ntwo **three** *four* `five` ~~six~~ ***seven*** **a*b*c** _x_ __y__ snake_case_name 2 * 3 * 4",
    "Setext\n===\n\nand\n---\n\n***\n\n## closed ##\n#no heading\n",
    "- a\n- b\n  - c\n\n    d\n- e\n\n1. x\n2. y\n   ```py\n   if a:\n   \tb\n   ```\n3) z\n\n7. seven",
    "- a\n\n- b\n  c\n",
    "> quote\n> - list\n>   more\nlazy\n\n> > deeper\n",
    "```rust\nlet a = `b`;\n\n``` \n~~~\n```\n~~~\n````md\n```\n````\n    indented\n\n      code\n",
    "a|b\n-|:-:\n`c`|**d**\ne \\| f|g|h\n\n| x |\n|--:|\n| y |\n\nno|table\n--\n",
    '[a](https://b.c/d "t") [*e*](<https://f.g/h>) ![i](https://j.k/l) <https://r.s/> [t](u',
    "\\*not\\* \\\\ \\a ``a`b`` ` a ` `` ` `` `open \\` **open *open [open ](https://x/) !",
    "line one  \nline two\\\nline three\n*a\nb* <b>&amp;</b> <!-- c --> é。**强调**。",
    "1. **Open** `x`:\n   - one\n   - two\n\n2. Then\n\n   text\n\nEnd:\n* a\n+ b\n",
    "```unfinished\ncode",
]
LINKS = (
    "see https://a.b/c_(d)), (https://e.f). [g](javascript:h) [i](//j.k) [l](/m) [![n](https://o/)](https://p/) q<br>r"
)
PIECES = ["a", " ", "\n", "\n\n", "*", "**", "_", "`", "```", "[", "](javascript:alert(1))", "](https://a.b)", "!["]
PIECES += ["$", "$$", "\\(", "\\)", "\\["]
PIECES += ["<img src=x onerror=alert(1)>", "<script>", "<", ">", "- ", "1. ", "> ", "|", "|-|\n", "\t", "\\", "#", "~~"]
LOOPS = [
    "*a_",
    "**a*",
    "[",
    "![",
    "[a](",
    '[a](b "',
    "`",
    "> ",
    "- ",
    "a.b@",
    "https://a)",
    "> a\nb\n",
    "|",
    "a|b\n-|-\n",
    "$a",
    "$a$ ",
    "$$\n",
    "\\(",
    "\\[\n",
    "```js\na(\n```\n",
]


def expected(text: str) -> str:
    """The reference's HTML, with images as links."""
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    html = parser.disable(["reference", "entity"]).render(text)
    html = re.sub(r'<img src="([^"]*)" alt="([^"]*)"[^>]*>', r'<a href="\1">\2</a>', html)
    return re.sub(r' title="[^"]*"', "", html).replace("&quot;", '"')


def normal(html: str) -> str:
    """Without white space between blocks and what has other spellings in HTML; the page shows line ends as they are."""
    html = html.replace("<br />", "").replace("<hr />", "<hr>").replace(' start="1"', "").replace(' style=""', "")
    html = re.sub(r'style="text-align: ?(\w+);?"', r'style="\1"', html)
    html = re.sub(r"\s*(</?(?:p|li|ul|ol|h\d|hr|blockquote|pre|table|thead|tbody|tr|th|td)\b[^>]*>)\s*", r"\1", html)
    return re.sub(r"\n*</code></pre>", "</code></pre>", html)


@pytest.fixture
def blank(page: Page, server: Running) -> Page:
    page.goto(server.url)
    return page


def test_markdown_is_read_like_the_reference(blank: Page) -> None:
    for text, shown in zip(TEXTS, blank.evaluate(SHOWN, TEXTS), strict=True):
        assert normal(shown) == normal(expected(text)), text


@pytest.mark.slow  # 3 s
def test_a_stream_ends_like_the_whole_text(blank: Page) -> None:
    closed = [text for text in TEXTS if "unfinished" not in text]
    assert blank.evaluate(STREAMED, closed) == [[True, True]] * len(closed)


def test_links_lead_to_other_sites_only(blank: Page) -> None:
    assert blank.evaluate(SHOWN, [LINKS]) == [
        '<p>see <a href="https://a.b/c_(d)">https://a.b/c_(d)</a>), (<a href="https://e.f/">https://e.f</a>). '
        '<span title="javascript:h">g</span> <span title="//j.k">i</span> <span title="/m">l</span> '
        '<a href="https://p/">n</a> q\nr</p>'
    ]


def test_no_text_becomes_markup(blank: Page) -> None:
    chance = random.Random(35)
    links = []
    for _ in range(40):
        text = "".join(chance.choices(PIECES, k=60))
        found: dict[str, Any] = blank.evaluate(SURVEY, text)
        assert set(found["tags"]) <= TAGS, text
        assert set(found["attributes"]) <= ATTRIBUTES, text
        assert not {"a", "img", "script", "iframe", "style", "foreignobject"} & set(found["inFormulas"]), text
        links += found["links"]
    assert links
    assert all(link == ["https:", "noopener noreferrer"] for link in links)


@pytest.mark.slow  # 4 s
def test_time_and_depth_are_bounded(blank: Page) -> None:
    """A model that loops writes such text; a parser with a quadratic step needs minutes for it."""
    wide_table = "|a" * 10_000 + "\n" + "|-" * 10_000 + "\n" + "|a\n" * 10_000
    for text in [wide_table, *(loop * (100_000 // len(loop)) for loop in LOOPS)]:
        found = blank.evaluate(SURVEY, text)
        assert found["ms"] < 30_000, text[:20]
        assert found["depth"] < 100, text[:20]


# Formulas as the page shows them: their source, as KaTeX keeps it, and whether they stand on lines of their own.
FORMULAS = """async (text) => {
    const { MarkdownView } = await import("/static/markdown.js");
    const shown = document.createElement("div");
    document.body.append(shown);
    new MarkdownView(shown).show(text);
    const waits = (one) => !one.title && one.childElementCount === 0;
    const isWaiting = () => [...shown.querySelectorAll(".formula")].some(waits);
    for (let i = 0; i < 1500 && isWaiting(); i += 1) await new Promise((resolve) => setTimeout(resolve, 20));
    return [...shown.querySelectorAll(".formula")].map((one) => [
        one.querySelector("annotation")?.textContent ?? null,
        one.classList.contains("block"),
        one.querySelector(".katex-html") !== null,
    ]);
}"""


def test_formulas_are_typeset(blank: Page) -> None:
    sources = {
        "so $a*b*c$ and \\(x_1 y_2\\) end": [("a*b*c", False), ("x_1 y_2", False)],
        "text\n$$\nE = mc^2\n+ 0\n$$\nmore": [("E = mc^2\n+ 0", True)],
        "\\[\n\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}\n\\]": [
            ("\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}", True)
        ],
        "1. one\n   \\[ x^2 \\]\n2. **$y$** and $$z$$ here": [("x^2", True), ("y", False), ("z", True)],
        "it costs $5 and $6, or US$7-US$8, `$x$`, \\$a$ $HOME/a:$PATH": [],
        "| $a_b$ | b |\n|-|-|\n| $$ | \\(c\\) |": [("a_b", False), ("c", False)],
    }
    for text, expected in sources.items():
        found = blank.evaluate(FORMULAS, text)
        assert [tuple(one[:2]) for one in found] == expected, text
        assert all(is_typeset for _, _, is_typeset in found), text


@pytest.mark.slow  # 3 s
def test_what_is_no_formula_stays_text(blank: Page) -> None:
    """Unknown commands, endless macros and links of formulas; a long one is not typeset."""
    macro = r"$\def\a{\a\a}\a$"
    for text in (r"$\nothing{x}$", macro, "$x^{$"):
        assert blank.evaluate(FORMULAS, text) == [[None, False, False]], text
    shown = "async (text) => { const { MarkdownView } = await import('/static/markdown.js');"
    shown += "const box = document.createElement('div'); new MarkdownView(box).show(text); return box.textContent; }"
    assert blank.evaluate(shown, r"$\nothing{x}$") == r"\nothing{x}"
    found = blank.evaluate(SURVEY, r"$\href{javascript:alert(1)}{x}$ $\includegraphics{https://a.b/c.png}$")
    assert found["links"] == []
    assert "img" not in found["tags"]


@pytest.mark.slow  # 3 s
def test_formulas_need_no_network(blank: Page, server: Running) -> None:
    opened(blank, server.url)  # with all that the page requests at its start
    asked: list[str] = []
    blank.on("request", lambda one: None if one.url.endswith("/status") else asked.append(one.url))
    blank.evaluate(FORMULAS, r"$\mathbb{R} \mathcal{L} \mathfrak{g} \int_0^1$")
    until(blank, "[...document.fonts].some((font) => font.status === 'loaded')")
    blank.evaluate("document.fonts.ready.then(() => true)")
    own = blank.url.rstrip("/")
    assert any(url.endswith(".woff2") for url in asked)
    assert all(url.startswith(f"{own}/static/") for url in asked)
    assert not blank.evaluate("[...document.fonts].some((font) => font.status === 'error')")


COLOURS = """async ([code, language]) => {
    const { MarkdownView } = await import("/static/markdown.js");
    const shown = document.createElement("div");
    document.body.append(shown);
    new MarkdownView(shown).show("```" + language + "\\n" + code + "\\n```");
    await import("/static/vendor/highlight/highlight.min.js");
    await new Promise((resolve) => setTimeout(resolve, 50));
    const text = shown.querySelector("code");
    return [text.textContent, [...text.querySelectorAll("span")].map((one) => `${one.className}:${one.textContent}`)];
}"""


def test_code_has_colours(blank: Page) -> None:
    code = "def f(x):\n    return '<b>' + 1  # note"
    text, spans = blank.evaluate(COLOURS, [code, "python"])
    assert text == code
    assert {"hl-keyword:def", "hl-title:f", "hl-string:'<b>'", "hl-number:1", "hl-comment:# note"} <= set(spans)
    assert blank.evaluate(COLOURS, [code, ""]) == [code, []]
    assert blank.evaluate(COLOURS, [code, "nonesuch"]) == [code, []]
    page = "<script>let a = 1;</script><style>p { color: red }</style>"
    text, spans = blank.evaluate(COLOURS, [page, "html"])
    assert text == page
    assert {"hl-name:script", "hl-keyword:let"} <= set(spans)
    assert blank.locator("style").count() == 0
