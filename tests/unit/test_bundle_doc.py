"""Every snippet of docs/how-to/bundles.md runs, in order, in one namespace."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "bundles.md"


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)  # noqa: S102 (our own page)
    shown = capsys.readouterr().out
    assert "differential privacy" in shown
    assert "Owner 3 (12,000 records)" in shown
    assert "not independent evidence" in shown
