"""The calls of google.colab.output that a notebook might make; they do nothing here."""


def enable_custom_widget_manager() -> None:
    """On Colab: allow widgets that do not come with ipywidgets."""


def register_callback(name: str, callback) -> None:
    """On Colab: let JavaScript call Python."""
