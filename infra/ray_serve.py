"""`bertsmith serve` as a Ray Serve application: replicas on several nodes under one address.

    serve run infra.ray_serve:build model=bertsmith-classifier@champion replicas=4 cpus=2

Each replica answers as `bertsmith serve` does, with `cpus` threads. The tracker is that of
MLFLOW_TRACKING_URI, or of the home (`home=…`), which every node must reach.
"""

from functools import partial
from pathlib import Path
from threading import Thread

from ray import serve
from ray.serve import Application


def build(arguments: dict[str, str]) -> Application:
    """The application that `serve run` starts."""
    model, home = arguments["model"], arguments.get("home")
    cpus, replicas = int(arguments.get("cpus", "1")), int(arguments.get("replicas", "1"))

    def application() -> object:
        import torch

        from bert_core.inference.tables import answer_table
        from flows.cli.options import asked_model
        from pipelines.predict import server
        from pipelines.registry.package import opened

        torch.set_num_threads(cpus)
        with asked_model(model, Path(home) if home else None) as (folder, called):
            loaded = opened(folder)
        server.warm_up(loaded, server.question_for(loaded[0], called), "float32")
        batcher = server.Batcher(partial(answer_table, *loaded), most_waiting=64)
        Thread(target=batcher.run, daemon=True).start()
        return server.application(loaded[0], called, batcher, "float32")

    replica = serve.deployment(serve.ingress(application)())
    return replica.options(
        num_replicas=replicas, ray_actor_options={"num_cpus": cpus}, max_ongoing_requests=128
    ).bind()
