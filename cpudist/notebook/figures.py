"""The matplotlib backend of a notebook's ranks, which shows rank 0's figures in the cell."""

import io

from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

from cpudist.notebook.result import ResultChannel


class FigureManager(FigureManagerBase):
    """The figures of one rank; `pyplot.show` calls `pyplot_show`."""

    @classmethod
    def pyplot_show(cls, *, block: bool | None = None) -> None:
        """Close all figures; on rank 0, publish them to the notebook first."""
        for manager in Gcf.get_all_fig_managers():
            picture = io.BytesIO()
            manager.canvas.figure.savefig(picture, format="png", bbox_inches="tight")
            if ResultChannel.of_rank_0 is not None:
                ResultChannel.of_rank_0.publish(picture.getvalue())
        Gcf.destroy_all()


class FigureCanvas(FigureCanvasAgg):  # type: ignore[misc]
    """The canvas; matplotlib looks for a class of this name."""

    manager_class = FigureManager
