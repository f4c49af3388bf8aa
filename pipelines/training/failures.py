"""Which errors of a worker end a training, and which only replace the worker."""

from typing import Any

from ray.train import UserCallback

from bert_core.training.loop import NonFiniteGradientError
from pipelines.core.errors import UserError

# What would fail again in the same way: the workers are not started anew.
FINAL_ERRORS = (UserError, NonFiniteGradientError)


class EndOnFinalError(UserCallback):
    """Ends all ranks as soon as one of them raised an error that would come again.

    Ray Train calls this in its controller and ends the training when it raises. So it does not
    matter whether the other ranks wait for the one that failed.
    """

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raise the final error among those of the ranks, if there is one."""
        for _, error in sorted(worker_exceptions.items()):
            if isinstance(error, FINAL_ERRORS):
                raise error
