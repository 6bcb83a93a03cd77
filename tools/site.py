"""Hook of mkdocs (`mkdocs.yml`): the README is the first page, and links to code lead to copies.

Pages of docs/ link to code, tests and records beside docs/. The site has a copy of each such file
below `code/`, so that every link of a page works, and `mkdocs build --strict` finds broken ones.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r'(\]\(|src=")([^)"#\s]+)')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README as index.md, and the files that pages link to outside of docs/."""
    readme = (ROOT / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=with_links(readme, ROOT)))
    texts = [(path.read_text(), path.parent) for path in (ROOT / "docs").glob("*.md")]
    for text, folder in [(readme, ROOT), *texts]:
        for _, target in LINK.findall(text):
            path = (folder / target).resolve()
            uri = code_uri(path)
            if uri and path.is_file() and files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: object, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page of docs/ at the copies."""
    return with_links(markdown, ROOT / "docs")


def with_links(text: str, folder: Path) -> str:
    """Return a text of `folder` whose links to files of this repository fit the site."""

    def fit(link: re.Match[str]) -> str:
        path = (folder / link[2]).resolve()
        if "://" in link[2] or not path.is_relative_to(ROOT):
            return link[0]
        if path == ROOT / "README.md":
            return f"{link[1]}index.md"
        return link[1] + (code_uri(path) or str(path.relative_to(ROOT / "docs")))

    return LINK.sub(fit, text)


def code_uri(path: Path) -> str:
    """Return the path of a file's copy in the site; "" for files in docs/ and elsewhere."""
    if not path.is_relative_to(ROOT) or path.is_relative_to(ROOT / "docs"):
        return ""
    name = str(path.relative_to(ROOT))
    return f"code/{name}.txt" if name.endswith(".md") else f"code/{name}"
