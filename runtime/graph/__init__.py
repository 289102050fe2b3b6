"""Graphs of launches: recorded, planned and replayed, on a GPU or in the interpreter."""

from kernel_dsl.variables import Variable

from .graph import Graph
from .nodes import GraphError, Node

__all__ = ["Graph", "GraphError", "Node", "Variable"]
