"""What mkdocs calls while it builds the site: pages from outside docs/, and links that hold on the site."""

import re
from functools import cache
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs_site.gallery import SCRIPTS, page
from docs_site.outside import CODE, PAGES, ROOT, linked, place_on_site, with_links_of_the_site

SOURCES: Final = {site: path for path, site in PAGES.items() if site not in ("index.md", "gallery/index.md")}
HIDDEN: Final = {
    "index.md": ["navigation", "toc"],
    "tutorial.md": ["navigation"],
    "gallery/index.md": ["toc"],
}
SEARCH: Final = 'data-md-component="search" role="dialog"'
NAME: Final = re.compile(r"(?<!\[)`(?:mr|metareplay)\.([\w.]+)(\(\))?`(?!\])")
SPREAD: Final = re.compile(r"(\d) ± (\d)")  # a mean and its deviation stay on one line
FOREIGN: Final = re.compile(r"""<(?:link|img|script|iframe|source)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")
DOCUMENTED: Final = re.compile(r"^::: metareplay\.([\w.]+)", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from files outside docs/, and the results that pages link to.

    Args:
        files: What mkdocs has found in docs/.
        config: Its configuration.
    """
    for site, path in SOURCES.items():
        files.append(File.generated(config, site, content=(ROOT / path).read_text()))
    for script in SCRIPTS:
        files.append(File.generated(config, f"gallery/{script.stem}.md", content=page(script)))
    for one in list(files.documentation_pages()):
        for target in linked(one.content_string, _source(one.src_uri)):
            place, there = place_on_site(target), ROOT / target
            if there.is_file() and place not in files.src_uris:
                files.append(File.generated(config, place, abs_src_path=str(there)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with links that hold on the site, and names that lead to the API pages.

    Args:
        markdown: The text as it is in the repository.
        page: The page.
        config: The configuration of mkdocs.
        files: All files of the site.
    """
    del config, files
    uri = page.file.src_uri
    page.meta["hide"] = HIDDEN.get(uri, [])
    changed = SPREAD.sub("\\1\u00a0±\u00a0\\2", with_links_of_the_site(markdown, _source(uri)))
    return changed if uri.startswith("api/") else with_names_linked(changed)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Return a built page, and fail if it would fetch a font, script, style or picture from another host.

    Material's search has no name that a screen reader could say; here it gets one.

    Args:
        output: The HTML of the page.
        page: The page.
        config: The configuration of mkdocs.
    """
    del config
    if found := FOREIGN.search(output):
        raise PluginError(f"{page.file.src_uri} fetches something from another host: {found[0]}")
    return output.replace(SEARCH, f'{SEARCH} aria-label="Search"')


def with_names_linked(markdown: str) -> str:
    """Make every public name in running text a link to its description.

    Args:
        markdown: The text.
    """

    def link(found: re.Match[str]) -> str:
        return f"[{found[0]}][metareplay.{found[1]}]" if found[1] in documented_names() else found[0]

    parts = CODE.split(markdown)
    parts[::2] = [
        "\n".join(line if line.startswith("#") else NAME.sub(link, line) for line in part.split("\n"))
        for part in parts[::2]
    ]
    return "".join(parts)


@cache
def documented_names() -> frozenset[str]:
    """Return every name that has a place on an API page, without the package in front."""
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    return frozenset(name for one in pages for name in DOCUMENTED.findall(one.read_text()))


def _source(uri: str) -> str:
    """Return where a page of the site is in the repository."""
    return SOURCES.get(uri, f"docs/{uri}")
