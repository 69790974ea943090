"""Links that leave docs/ hold in the repository and on the site."""

import pytest

from docs_site.outside import linked, place_on_site, with_links_of_the_site


@pytest.mark.parametrize(
    ("source", "written", "expected"),
    [
        ("docs/guide.md", "[s](streams.md#drift)", "[s](streams.md#drift)"),
        ("docs/guide.md", "[e](../examples/drift.py)", "[e](gallery/drift.md)"),
        ("docs/guide.md", "[e](../examples)", "[e](gallery/index.md)"),
        ("docs/gallery/index.md", "[![a](drift.png)](../../examples/drift.py)", "[![a](drift.png)](drift.md)"),
        ("docs/results.md", "![p](../results/table-2.png)", "![p](results/table-2.png)"),
        ("docs/api/learners.md", "[g](../guide.md)", "[g](../guide.md)"),
        ("CONTRIBUTING.md", "[r](docs/results.md)", "[r](results.md)"),
        ("docs/index.md", "[c](../CONTRIBUTING.md)", "[c](contributing.md)"),
        ("docs/guide.md", "[w](https://arxiv.org/abs/1810.11910) [h](#here)", None),
        ("docs/guide.md", "```python\nx = a[0](../examples)\n```", None),
    ],
)
def test_links_are_rewritten(source: str, written: str, expected: str | None) -> None:
    assert with_links_of_the_site(written, source) == (expected or written)


def test_linked_files_are_found() -> None:
    text = "[a](../results/a.json) [b](b.md#c)\n```\n[no](../no.md)\n```\n[w](https://x.org/y.md)"
    assert linked(text, "docs/page.md") == ["results/a.json", "docs/b.md"]


def test_pages_without_a_copy_have_a_place() -> None:
    assert place_on_site("CHANGELOG.md") == "changelog.md"
