"""A kernel's messages go to the browser at once, instead of up to 40 ms later.

A slider's event is answered by several small messages ("busy", the new picture, "idle"). Jupyter Server leaves TCP's
own rule in force, by which a small message waits until the one before it has been acknowledged, and browsers delay
acknowledgements by up to 40 ms: every answer waits for that. This Jupyter Server extension sets TCP_NODELAY on the
websockets of kernels, as Tornado recommends for them (WebSocketHandler.set_nodelay), and changes nothing else.
`requirements.txt` installs it. Without it the course works the same, a little slower.
"""

from __future__ import annotations

SETTING = "kernel_websocket_connection_class"


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
    """Put the class in place; a server that keeps it elsewhere is left as it is."""
    connection = app.web_app.settings.get(SETTING)
    if isinstance(connection, type):
        app.web_app.settings[SETTING] = at_once(connection)
