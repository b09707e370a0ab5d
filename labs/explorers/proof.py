"""What a reader can show for it: the certificate, with a name and a button that writes it to a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as w

from labs.explorers.panel import Displayed, flow, message_html, sentence


class CertificatePanel(Displayed):
    """A name, a button, and the certificate: shown here, and written beside the notebook when the button is pressed."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self._make = make
        self.name = w.Text(placeholder="your name, if it should stand on it", continuous_update=False,
                           layout=w.Layout(width="420px", max_width="100%"))
        self.button = w.Button(description="Write certificate.html", icon="print", layout=w.Layout(width="auto"))
        self._said, self._page = w.HTML(), w.HTML(layout=w.Layout(width="100%"))
        self.name.observe(lambda _: self.show(), names="value")
        self.button.on_click(lambda _: self.write())
        super().__init__([flow([self.name, self.button]), self._said, self._page])
        self.show()

    def show(self) -> None:
        """The certificate as it is now."""
        try:
            self._page.value, self._said.value = self._make(self.name.value)._repr_html_(), ""
        except Exception as error:
            self._said.value = message_html(sentence(error), bad=True)

    def write(self) -> None:
        """Into a file to print."""
        try:
            path = self._make(self.name.value).save()
            self.show()
            self._said.value = message_html(f"Written to {path.parent.name}/{path.name}: open it and print it.")
        except Exception as error:
            self._said.value = message_html(sentence(error), bad=True)

    def summary(self) -> str:
        """The counts in words."""
        return f"A certificate of what was passed: {self._make('')!r}"


def certificate(make: Callable[[str], Any]) -> CertificatePanel:
    """A panel around `make(name)`, which gives a certificate."""
    return CertificatePanel(make)
