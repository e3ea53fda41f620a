"""Makes the site a whole: the README is its first page, and what pages link to beside docs/ is a page, too.

In the repository every link of a page leads to a file. On the site a link to a file outside docs/ leads to a page
with that file's text, so that none leads nowhere, and none to another host.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).parents[2]
FOLDER = "repository"  # of the site: the pages of files that are not below docs/
# A code block, which stays as it is; or a link.
LINK = re.compile(
    r"^( *)(`{3,}).*?^\1\2`*$|\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)", re.MULTILINE | re.DOTALL
)
# Whom the search puts before pages that only use a name.
FIRST = ("declaration.md", "settings.md", "commands.md")
LANGUAGES = {".py": "python", ".json": "json", ".yml": "yaml", ".example": "toml", ".sql": "sql"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made of other files than those below docs/."""
    files.append(File.generated(config, "index.md", abs_src_path=str(REPOSITORY / "README.md")))
    files.append(File.generated(config, "decisions/index.md", content=decisions()))
    linked = {"CHANGELOG.md", "CONTRIBUTING.md"}
    texts = {source(file.src_uri): file.content_string for file in files.documentation_pages()}
    for place, text in texts.items():
        targets = (found["target"] for found in LINK.finditer(text) if found["target"])
        linked |= {there for target in targets if (there := outside(place, target))}
    for target in sorted(linked):
        files.append(File.generated(config, page_of(target), content=shown(target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let each link lead to where its target is on the site."""
    uri = page.file.src_uri
    place = source(uri)
    if uri in FIRST:
        page.meta["search"] = {"boost": 4}

    def moved(found: re.Match[str]) -> str:
        target, anchor = found["target"], found["anchor"] or ""
        if not target or "://" in target:
            return found[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
        return f"]({posixpath.relpath(site_path(there), posixpath.dirname(uri) or '.')}{anchor})"

    return LINK.sub(moved, markdown)


def source(uri: str) -> str:
    """Return the repository's path of what a page of the site is made of."""
    if uri == "index.md":
        return "README.md"
    if uri.startswith(f"{FOLDER}/"):
        path = uri.removeprefix(f"{FOLDER}/")
        return path if (REPOSITORY / path).is_file() else path.removesuffix(".md")
    return f"docs/{uri}"


def outside(place: str, target: str) -> str | None:
    """Return the path of a linked file that is not below docs/; None for every other link."""
    there = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
    is_other = "://" not in target and there != "README.md" and not there.startswith(("docs/", ".."))
    return there if is_other and (REPOSITORY / there).is_file() else None


def site_path(path: str) -> str:
    """Return the page of the site, or the file of docs/, that a path of the repository is there."""
    if path == "README.md":
        return "index.md"
    if path == "docs/decisions":
        return "decisions/index.md"
    if path == "docs/cookbook":
        return "cookbook/README.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else page_of(path)


def page_of(path: str) -> str:
    return f"{FOLDER}/{path}" if path.endswith(".md") else f"{FOLDER}/{path}.md"


def shown(path: str) -> str:
    """Return the page of a file: Markdown as it is, anything else as a code block that the search leaves out."""
    text = (REPOSITORY / path).read_text()
    if path.endswith(".md"):
        return text
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n````{language}\n{text}````\n"


def decisions() -> str:
    """Return the list of all decisions, by their titles, the newest first."""
    titles = {
        file.name: file.read_text().partition("\n")[0].removeprefix("# ")
        for file in sorted((REPOSITORY / "docs/decisions").glob("[0-9]*.md"), reverse=True)
    }
    listed = "".join(f"- [{title}]({name})\n" for name, title in titles.items())
    return f"# Decisions\n\nWhy it is as it is: a page for each choice that others build on.\n\n{listed}"
