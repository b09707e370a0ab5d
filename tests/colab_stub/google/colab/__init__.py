"""Stands in for Colab's own package, so that code which asks "is this Colab?" takes Colab's path."""
