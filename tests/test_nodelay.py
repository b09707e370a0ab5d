"""The Jupyter Server extension that sends a kernel's messages at once."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "labs" / "jupyter"


@pytest.fixture
def nodelay():
    """The module, from the repository rather than from where it is installed."""
    spec = importlib.util.spec_from_file_location("labs_nodelay_here", FOLDER / "labs_nodelay.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Connection:
    """As Jupyter Server's: made with a handler, then connected."""

    log = logging.getLogger("test")

    def __init__(self, handler):
        self.websocket_handler, self.said = handler, handler.said

    async def connect(self):
        self.said.append("connected")
        return "connected"


class Handler:
    """A websocket that notes what it is told."""

    def __init__(self, closing: bool = False):
        self.said, self.closing = [], closing

    def set_nodelay(self, value):
        if self.closing:
            raise RuntimeError("closed")
        self.said.append(value)


def test_it_is_set_before_anything_is_sent(nodelay) -> None:
    handler = Handler()
    assert asyncio.run(nodelay.at_once(Connection)(handler).connect()) == "connected"
    assert handler.said == [True, "connected"]


def test_a_socket_that_refuses_it_still_connects(nodelay) -> None:
    handler = Handler(closing=True)
    assert asyncio.run(nodelay.at_once(Connection)(handler).connect()) == "connected"
    assert handler.said == ["connected"]


@pytest.mark.parametrize("kept", [{}, {"kernel_websocket_connection_class": None}])
def test_a_server_without_the_setting_is_left_as_it_is(nodelay, kept) -> None:
    app = SimpleNamespace(web_app=SimpleNamespace(settings=dict(kept)))
    nodelay._load_jupyter_server_extension(app)
    assert app.web_app.settings == kept | {"websocket_max_message_size": 64 * 2**20}


def test_a_limit_that_somebody_set_stays(nodelay) -> None:
    app = SimpleNamespace(web_app=SimpleNamespace(settings={"websocket_max_message_size": 5}))
    nodelay._load_jupyter_server_extension(app)
    assert app.web_app.settings["websocket_max_message_size"] == 5


def test_tornado_goes_by_the_limit(nodelay) -> None:
    from tornado.websocket import WebSocketHandler

    app = SimpleNamespace(settings={"websocket_max_message_size": 5})
    assert WebSocketHandler.max_message_size.fget(SimpleNamespace(settings=app.settings)) == 5


def test_the_servers_own_class_is_kept_underneath(nodelay) -> None:
    app = SimpleNamespace(web_app=SimpleNamespace(settings={nodelay.SETTING: Connection}))
    nodelay._load_jupyter_server_extension(app)
    assert issubclass(app.web_app.settings[nodelay.SETTING], Connection)
    assert app.web_app.settings[nodelay.SETTING] is not Connection


def test_jupyter_server_has_what_the_extension_relies_on() -> None:
    from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
    from jupyter_server.services.kernels.websocket import KernelWebsocketHandler

    assert callable(ZMQChannelsWebsocketConnection.connect)
    assert callable(KernelWebsocketHandler.set_nodelay)
    assert KernelWebsocketHandler.kernel_websocket_connection_class.fget(
        SimpleNamespace(settings={"kernel_websocket_connection_class": Connection})) is Connection


def test_requirements_install_it_and_it_turns_itself_on() -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert sum(line.split("#")[0].strip() == "./labs/jupyter" for line in lines) == 1
    assert tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]["name"] == "labs-nodelay"
    files = [p.name for p in (FOLDER / "data/etc/jupyter/jupyter_server_config.d").iterdir()]
    assert files == ["labs_nodelay.json"]
