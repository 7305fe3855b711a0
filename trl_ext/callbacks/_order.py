"""A place ahead of TensorBoard, W&B and their like, so that what a callback adds to `logs` reaches them."""

from transformers import TrainerCallback
from transformers.integrations import INTEGRATION_TO_CALLBACK

from trl_ext.callbacks._frames import calling_handler


def move_before_reporting(callback: TrainerCallback, *others: type[TrainerCallback]) -> None:
    """For `on_train_begin`: moves `callback` to the place of the first reporting callback (or of the first that is one
    of `others`), and that one back by one.

    Transformers puts a user's callbacks last. The handler is going through its list at this moment: an element moved
    forward from the current place shifts only those already called, so none is skipped and none called twice.
    """
    handler = calling_handler(callback)
    if handler is None:
        return
    callbacks, reporting = handler.callbacks, (*INTEGRATION_TO_CALLBACK.values(), *others)
    place = next(i for i, other in enumerate(callbacks) if other is callback)
    first = next((i for i, other in enumerate(callbacks[:place]) if isinstance(other, reporting)), place)
    callbacks.insert(first, callbacks.pop(place))
