"""What torch's code of C++ or Python warns of, and as if from where."""

import sys
import warnings
from threading import get_ident


class InThisThread:
    """In a filter of warnings it stands where a pattern does."""

    def __init__(self):
        self.thread = get_ident()

    def match(self, text):
        return get_ident() == self.thread


def told(run):
    """The text of what this function warns of, and where that was: (text, globals, file, line), of the frame that called the one that
    warned. No filter of warnings is another one afterwards, and nothing was shown. None: it does not warn."""
    here = InThisThread()
    filters, ours = warnings.filters, ("error", here, Warning, None, 0)
    filters.insert(0, ours)  # not a list in its place: what other threads do to it meanwhile stays
    try:
        run()
    except Warning as warning:
        frames, at = [], warning.__traceback__
        while at:
            frames.append((at.tb_frame, at.tb_lineno))
            at = at.tb_next
        frame, line = frames[max(-2, -len(frames))]
        return str(warning), frame.f_globals, frame.f_code.co_filename, line
    finally:
        here.thread = None  # some other list may have it now
        if ours in filters:
            filters.remove(ours)
    return None


def of_list_index():
    import torch

    names = {"x": torch.zeros(1), "i": torch.zeros(1, dtype=torch.int64), "__name__": __name__}  # its registry dies with it
    return told(lambda: exec("x[[i]]", names))


def of_tensor_of_tensor():
    import torch

    x = torch.zeros(1)
    return told(lambda: torch.tensor(x))


def of_ufunc_of_tensor():
    import numpy
    import torch

    x = torch.zeros(1)
    return told(lambda: numpy.sqrt(x))


def of_checkpoint_without_form():
    x = sys.modules["torch"].zeros(1)
    return told(lambda: sys.modules["torch.utils.checkpoint"].checkpoint(abs, x))  # without use_reentrant


def of_checkpoint_without_gradients():
    x = sys.modules["torch"].zeros(1)
    return told(lambda: sys.modules["torch.utils.checkpoint"].checkpoint(abs, x, use_reentrant=True))
