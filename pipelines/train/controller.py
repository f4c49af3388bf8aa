"""What Ray Train's controller calls, in a process that imports nothing of ours beside it."""

from typing import Any

from ray.train import UserCallback

from pipelines.errors import UserError


class EndOnFinalError(UserCallback):
    """Ends all ranks as soon as one of them raised UserError, which would come again.

    Ray Train calls this in its controller and ends the training run when it raises, even while
    other ranks wait for the failed one.
    """

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raise the first UserError among the errors of the ranks, if there is one."""
        for _, error in sorted(worker_exceptions.items()):
            if isinstance(error, UserError):
                raise error
