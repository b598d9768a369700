"""Executes the example's notebook in a Jupyter kernel of one node, and prints the output of its cells.

python execute.py NUM_PROCESSES [NUM_NODES NODE_RANK MASTER_ADDR]
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[3] / "examples" / "image_classifier.ipynb"


def main(processes: str, nodes: str = "1", node_rank: str = "0", address: str | None = None) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    parameters.source = (
        f"NUM_PROCESSES, NUM_NODES, NODE_RANK, MASTER_ADDR = {processes}, {nodes}, {node_rank}, {address!r}"
    )
    try:
        NotebookClient(notebook, timeout=150, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
    finally:
        for cell in notebook.cells:
            for output in cell.get("outputs", []):
                print(output.get("text", ""), end="", file=sys.stderr if output.get("name") == "stderr" else sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
