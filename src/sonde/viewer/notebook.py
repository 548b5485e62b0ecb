"""The page in the output of a notebook: as a widget that asks the kernel; where no kernel answers, as a saved page.

The page stands in a frame of its own, so that its styles and those of the notebook cannot meet. The frame has no origin
and no rights but to run its script; its questions go to the notebook's page as messages, and from there to the kernel.
"""

from __future__ import annotations

import functools
import html
import importlib.util
import json
from collections.abc import Mapping
from typing import Any

from sonde.report.page import framed
from sonde.viewer.assets import whole_page
from sonde.viewer.conversation import Conversation, threads
from sonde.viewer.operations import Subjects
from sonde.viewer.saved import first_answers

_FRAME = """
function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.title = "sonde";
  frame.setAttribute("sandbox", "allow-scripts allow-downloads");
  frame.style.cssText = "width:100%;height:820px;border:1px solid rgba(128,128,128,.4);resize:vertical";
  frame.srcdoc = model.get("page");
  const ask = (event) => {
    if (event.source === frame.contentWindow && event.data?.sonde) model.send({ sonde: event.data.sonde });
  };
  const tell = (message) => frame.contentWindow?.postMessage(message, "*");
  addEventListener("message", ask);
  model.on("msg:custom", tell);
  el.append(frame);
  return () => {
    removeEventListener("message", ask);
    model.off("msg:custom", tell);
  };
}
export default { render };
"""


def shown(subjects: Subjects, text: str) -> Any:
    """What a notebook shows of a page: a widget, and beside it a saved page for notebooks that are exported.

    Args:
        subjects: What is on the page, by name.
        text: What is shown where neither can be.
    """
    saved = framed(whole_page("Sonde", {"answers": first_answers(subjects)}), f"<pre>{html.escape(text)}</pre>")
    plain = {"text/plain": text, "text/html": saved}
    if importlib.util.find_spec("anywidget") is None:
        return plain
    view, metadata = widget(subjects)._repr_mimebundle_()
    return {**view, **plain}, metadata


def widget(subjects: Subjects) -> Any:
    """A widget that is the page; questions are answered by this process."""
    page = _widget_class()(page=whole_page("Sonde"))
    conversation = Conversation(subjects, threads(), lambda message: page.send(_finite(message)))

    def take(_: Any, message: Any, buffers: Any) -> None:
        if isinstance(message, dict) and isinstance(message.get("sonde"), str):
            conversation.take(message["sonde"])

    page.on_msg(take)
    return page


@functools.cache
def _widget_class() -> Any:
    import anywidget
    import traitlets

    class Page(anywidget.AnyWidget):
        """The page, as a text that a frame shows."""

        _esm = _FRAME
        page = traitlets.Unicode().tag(sync=True)

    return Page


def _finite(message: Mapping[str, Any]) -> Any:
    """The message, checked to be what a browser can read, as the server checks it."""
    return json.loads(json.dumps(message, allow_nan=False))
