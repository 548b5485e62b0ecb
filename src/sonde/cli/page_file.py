"""Writing a page; that it can be written is checked before the work, which may take long."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sonde.cli.exit_codes import Unusable

if TYPE_CHECKING:
    from sonde.report import Report


def check_writable(out: str) -> Path:
    """The path of a page, after a check that it can be written."""
    page = Path(out).resolve()
    if page.is_dir():
        raise Unusable(f"{out!r} is a folder; --out names the file that the page is written to.")
    if not page.parent.is_dir():
        raise Unusable(f"There is no folder {str(page.parent)!r} to write the page to.")
    return page


def write_page(report: Report, page: Path) -> None:
    """Writes the page."""
    try:
        report.write(page)
    except OSError as error:
        raise Unusable(f"The page cannot be written to {str(page)!r}: {error.strerror or error}") from error
