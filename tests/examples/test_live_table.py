"""examples/live_table.html shows a Postgres table in a browser, and every change to it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Browser, expect

from headrace.testing.server_process import ServerProcess
from tests.examples.conftest import EXAMPLES
from tests.shapes.helpers import ITEMS, ShapesProcess
from tests.ui.conftest import PATIENCE_MS

pytestmark = pytest.mark.slow


def test_the_page_follows_a_filtered_table(
    server: ServerProcess, database: str, browser: Browser, pages: str, tmp_path: Path
) -> None:
    assert (EXAMPLES / "node_modules/@electric-sql/client").is_dir(), "make test installs it"
    shapes = ShapesProcess(database, server.url, tmp_path / "log", "--cors-origins", pages)
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(ITEMS.encode())
        db.execute("insert into items (title, done) values ('first', false), ('other', true)")
        shapes.start()
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{pages}/live_table.html?shapes={shapes.url}&table=items&where=done=false")
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("first")
        db.execute("insert into items (title, done) values ('<b>second</b>', false)")
        expect(rows).to_have_count(2)
        expect(rows.last).to_contain_text("<b>second</b>")
        db.execute("update items set title = 'renamed' where title = 'first'")
        expect(rows.first).to_contain_text("renamed")
        db.execute("update items set done = true where title = 'renamed'")
        expect(rows).to_have_count(1)
        expect(page.locator("#status")).to_have_text("1 rows")
        page.close()
    shapes.stop()
    assert "Traceback" not in shapes.log, shapes.log
