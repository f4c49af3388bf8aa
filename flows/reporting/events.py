"""What happened, for Prefect's automations: a model that got an alias."""

import logging

from prefect.events import emit_event

from pipelines.registry.promotion import Promotion

logger = logging.getLogger(__name__)

PROMOTED = "bertsmith.model.promoted"


def tell_of_promotion(promotion: Promotion) -> None:
    """Emit an event that names model, version and alias; trouble with that stops nothing."""
    try:
        emit_event(
            event=PROMOTED,
            resource={
                "prefect.resource.id": f"bertsmith.model.{promotion.name}",
                "prefect.resource.name": promotion.name,
                "bertsmith.alias": promotion.alias,
                "bertsmith.version": str(promotion.version),
            },
            payload={
                "name": promotion.name,
                "alias": promotion.alias,
                "version": str(promotion.version),
                "previous_version": str(promotion.previous_version or ""),
                "model_uri": f"models:/{promotion.name}@{promotion.alias}",
            },
        )
    # The alias has moved: whatever keeps the event from its server, that is done.
    except Exception as error:  # noqa: BLE001
        logger.warning("nobody was told of the promotion of %s: %s", promotion.name, error)
