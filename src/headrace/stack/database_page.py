"""A read-only page of the database's tables, for where Adminer cannot be had."""

from __future__ import annotations

from html import escape
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import psycopg
from psycopg import sql

from headrace.protocol.access import HostRules
from headrace.stack.page_handler import PageHandler

ROWS_SHOWN = 100
CELL_CHARS_MAX = 200
_TABLES = """
select n.nspname, c.relname, greatest(c.reltuples, 0)::bigint
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and n.nspname not like 'pg\\_%%' and n.nspname <> 'information_schema'
order by 1, 2
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_STYLE = (
    "body{font:14px system-ui;margin:2em}table{border-collapse:collapse}"
    "td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left;vertical-align:top}"
)


class UnknownTable(LookupError):
    """No such table, or none that is shown."""


class TablePages:
    """The pages as text. Every query runs in a read-only transaction."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(
            self._url,
            connect_timeout=5,
            options="-c default_transaction_read_only=on -c statement_timeout=10s",
        )

    def index(self) -> str:
        with self._connect() as connection:
            found = connection.execute(_TABLES).fetchall()
        links = "".join(
            f'<li><a href="/table?name={escape(schema)}.{escape(table)}">'
            f"{escape(schema)}.{escape(table)}</a></li>"
            for schema, table, _ in found
        )
        return _page("Tables", f"<ul>{links}</ul>")

    def table(self, name: str) -> str:
        schema, _, table = name.partition(".")
        with self._connect() as connection:
            if (schema, table) not in {row[:2] for row in connection.execute(_TABLES)}:
                raise UnknownTable(name)
            # The newest first, where there is a key to tell: that is what one looks for here.
            query = sql.SQL("select * from {} order by 1 desc limit {}").format(
                sql.Identifier(schema, table), sql.Literal(ROWS_SHOWN)
            )
            cursor = connection.execute(query)
            columns = [column.name for column in cursor.description or ()]
            rows = cursor.fetchall()
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
        note = f'<p><a href="/">all tables</a>, at most {ROWS_SHOWN} rows, read-only</p>'
        return _page(name, f"{note}<table><tr>{head}</tr>{body}</table>")


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    if len(text) > CELL_CHARS_MAX:
        text = text[:CELL_CHARS_MAX] + "..."
    return f"<td>{escape(text)}</td>"


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>{body}</html>"
    )


def server(url: str, host: str, port: int, rules: HostRules) -> ThreadingHTTPServer:
    """The page's server, listening; `serve_forever` runs it."""
    pages = TablePages(url)

    class DatabasePageHandler(PageHandler):
        hosts = rules

        def do_GET(self) -> None:  # noqa: N802
            split = urlsplit(self.path)
            try:
                if split.path == "/":
                    self._answer(200, pages.index())
                elif split.path == "/table":
                    self._answer(200, pages.table(parse_qs(split.query).get("name", [""])[0]))
                else:
                    self._answer(404, _page("Not found", ""))
            except UnknownTable:
                self._answer(404, _page("There is no such table", ""))
            except psycopg.Error as error:
                self._answer(503, _page("The database does not answer", escape(str(error))))

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Security-Policy", _POLICY)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return ThreadingHTTPServer((host, port), DatabasePageHandler)
