"""Executes a notebook in a Jupyter kernel of one node, and prints the output of its cells.

python execute.py NUM_PROCESSES [NUM_NODES NODE_RANK MASTER_ADDR]: the example's
python execute.py FILE: the cells of a program, which "# %%" separates
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[3] / "examples" / "image_classifier.ipynb"


def example(*values: object) -> nbformat.NotebookNode:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    parameters.source = f"NUM_PROCESSES, NUM_NODES, NODE_RANK, MASTER_ADDR = {values}"
    return notebook


def program(file: str) -> nbformat.NotebookNode:
    cells = Path(file).read_text().split("# %%\n")
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def main(first: str, nodes: str = "1", node_rank: str = "0", address: str | None = None) -> None:
    alone = first.endswith(".py")
    notebook = program(first) if alone else example(int(first), int(nodes), int(node_rank), address)
    try:
        NotebookClient(notebook, timeout=150, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
    finally:
        for cell in notebook.cells:
            for output in cell.get("outputs", []):
                if "image/png" in output.get("data", {}):
                    print(f"{output.output_type} of a picture")
                print(output.get("text", ""), end="", file=sys.stderr if output.get("name") == "stderr" else sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
