"""A kernel's messages go to the browser at once, instead of up to 40 ms later.

A slider's event is answered by several small messages ("busy", the new picture, "idle"). Jupyter Server leaves TCP's
own rule in force, by which a small message waits until the one before it has been acknowledged, and browsers delay
acknowledgements by up to 40 ms: every answer waits for that. This Jupyter Server extension sets TCP_NODELAY on the
websockets of kernels, as Tornado recommends for them (WebSocketHandler.set_nodelay).

And a file that is uploaded to a panel is one message, which Tornado refuses above 10 MiB by closing the connection,
without a word to the reader: here it may have 64 MiB, so that a panel can say which size it takes.
`requirements.txt` installs it. Without it the course works the same, a little slower, up to 10 MiB.
"""

from __future__ import annotations

SETTING = "kernel_websocket_connection_class"
LARGEST = 64 * 2**20  # bytes of a message from the browser


def at_once(connection: type) -> type:
    """The same class of connection, whose `connect` first tells its websocket not to hold small messages back."""

    class AtOnce(connection):
        def connect(self):
            try:
                self.websocket_handler.set_nodelay(True)
            except Exception:  # a closing socket, or another kind of handler: being slower is no reason to fail
                self.log.debug("labs_nodelay: TCP_NODELAY could not be set", exc_info=True)
            return super().connect()

    AtOnce.__name__ = AtOnce.__qualname__ = connection.__name__
    return AtOnce


def _jupyter_server_extension_points() -> list[dict]:
    """What Jupyter Server asks an extension's package for."""
    return [{"module": "labs_nodelay"}]


def _load_jupyter_server_extension(app) -> None:
    """Put the class and the limit in place; a server that keeps the class elsewhere, or has a limit, keeps them."""
    app.web_app.settings.setdefault("websocket_max_message_size", LARGEST)
    connection = app.web_app.settings.get(SETTING)
    if isinstance(connection, type):
        app.web_app.settings[SETTING] = at_once(connection)
