"""Make the outputs that the pages print anew: `make docs-outputs`, some minutes. Every build runs the tutorials itself.

A block of output stands below a comment that names its command. What the command prints is cut to the paragraphs that the block
is about. Noise is never seeded, so numbers differ from run to run. The words do not: `tests/docs/test_docs.py` looks for them
in the code.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r"(?P<head><!-- printed by: (?P<command>[^>]+?)(?: \| (?P<about>[^>]+?))? -->\n+```text\n)(?P<text>.*?)```",
    re.DOTALL,
)
PAGES = (ROOT / "README.md", ROOT / "docs" / "how-to" / "several-owners.md", ROOT / "docs" / "how-to" / "audit.md")
ENVIRONMENT = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}


def blocks() -> list[re.Match[str]]:
    """Every block of printed output there is."""
    return [found for page in PAGES for found in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def labels(text: str) -> set[str]:
    """The words that begin a line or head a column: one to three of them, without numbers."""
    cells = [cell.strip(" :") for line in text.splitlines() for cell in re.split(r"\s{2,}", line.strip())]
    return {cell for cell in cells if re.fullmatch(r"[A-Za-z^-]+(?: [A-Za-z^-]+){0,2}", cell)}


def printed(command: str, about: str | None) -> str:
    """What a command prints, cut to the paragraphs that contain one of the words after the bar."""
    code = "import sys; from sfumato.cli import main; sys.exit(main())"
    with tempfile.TemporaryDirectory() as folder:
        arguments = [word.replace("FOLDER", folder) for word in command.split()[1:]]
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True
        )  # fmt: skip
    paragraphs = [p.strip("\n") for p in re.split(r"\n\s*\n", done.stdout) if p.strip()]
    wanted = [word.strip() for word in about.split(",")] if about else [""]
    kept = [p for p in paragraphs if any(word in p for word in wanted)]
    return "\n\n".join("\n".join(line.rstrip() for line in p.splitlines()) for p in kept) + "\n"


def main() -> None:
    """Write every block anew."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(
            BLOCK.sub(lambda m: f"{m['head']}{printed(m['command'], m['about'])}```", text), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
