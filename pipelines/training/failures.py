"""Which errors of a worker end a training, which only replace the worker, and what they say."""

from typing import Any

from ray.train import ControllerError, UserCallback

from pipelines.core.errors import UserError

# What would fail again in the same way: the workers are not started anew.
FINAL_ERRORS = (UserError,)


def explained(error: ControllerError, placement: object) -> Exception:
    """What a person is told when Ray's controller ended a training: a sentence where there is one.

    `placement` is what Ray was asked for.
    """
    cause = error.controller_failure
    if isinstance(cause, FINAL_ERRORS):
        return cause
    if type(cause).__name__ == "WorkerGroupStartupTimeoutError":  # Ray has no public name for it
        return UserError(
            f"the cluster must have room for the training ({placement}), but others hold it; wait "
            "for them, or lower place.training_workers or place.cpus_per_worker"
        )
    return error


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
