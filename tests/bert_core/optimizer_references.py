"""Plain optimizers over the parameters of BERT as published, to hold ours against."""

import re

import torch

from tests.bert_core.optimizer_runs import DECAY, RATE

NUM_LAYERS = 2


def rate_scale(name, layer_decay):
    """Of the paper's fine-tuning: embeddings lowest, heads the whole rate."""
    layer = re.match(r"encoder\.layers\.(\d+)\.", name)
    if layer:
        return layer_decay ** (NUM_LAYERS - int(layer[1]))
    return layer_decay ** (NUM_LAYERS + 1) if name.startswith("encoder.") else 1.0


class Reference:
    """The parameters of BERT as published, each by itself: queries, keys and values are three."""

    def __init__(self, model, layer_decay, dtype=torch.float32):
        self.parts = {}
        for name, parameter in model.named_parameters():
            pieces = parameter.detach().clone().to(dtype)
            pieces = pieces.chunk(3) if "to_qkv.weight" in name else (pieces,)
            self.parts[name] = [torch.nn.Parameter(piece.clone()) for piece in pieces]
        self.layer_decay = layer_decay

    def group(self, name):
        scale = rate_scale(name, self.layer_decay)
        is_vector = self.parts[name][0].ndim == 1
        return {
            "params": self.parts[name],
            "scale": scale,
            "weight_decay": 0.0 if is_vector else DECAY,
            "is_hidden": not is_vector and "encoder.layers." in name,
        }

    def groups(self):
        return [self.group(name) for name in self.parts]

    def take_gradients(self, model, divisor):
        for name, parameter in model.named_parameters():
            gradients = parameter.grad / divisor
            chunks = gradients.chunk(3) if "to_qkv.weight" in name else (gradients,)
            for part, gradient in zip(self.parts[name], chunks, strict=True):
                part.grad = gradient.clone().to(part.dtype)

    def assert_near(self, model, tolerance):
        for name, parameter in model.named_parameters():
            theirs = torch.cat([part.detach() for part in self.parts[name]]).float()
            torch.testing.assert_close(parameter.detach(), theirs, atol=tolerance, rtol=0, msg=name)


class TorchAdamW(Reference):
    def __init__(self, model, layer_decay, choose=lambda group: True):
        super().__init__(model, layer_decay)
        groups = [group for group in self.groups() if choose(group)]
        self.optimizers = [torch.optim.AdamW(groups, lr=RATE, eps=1e-6)]

    def step(self, rate):
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group["scale"]
            optimizer.step()


class TorchMuon(TorchAdamW):
    def __init__(self, model, layer_decay):
        super().__init__(model, layer_decay, lambda group: not group["is_hidden"])
        hidden = [group for group in self.groups() if group["is_hidden"]]
        assert len(hidden) == 4 * NUM_LAYERS
        self.optimizers.append(torch.optim.Muon(hidden, lr=RATE, adjust_lr_fn="match_rms_adamw"))


class WrittenLAMB(Reference):
    """Algorithm 2 of the paper in float64, parameter by parameter."""

    def __init__(self, model, layer_decay):
        super().__init__(model, layer_decay, torch.float64)
        self.moments = {}
        self.count = 0

    @torch.no_grad()
    def step(self, rate):
        self.count += 1
        for group in self.groups():
            for x in group["params"]:
                m, v = self.moments.get(x, (torch.zeros_like(x), torch.zeros_like(x)))
                m = 0.9 * m + 0.1 * x.grad
                v = 0.999 * v + 0.001 * x.grad**2
                self.moments[x] = m, v
                corrected = m / (1 - 0.9**self.count), v / (1 - 0.999**self.count)
                update = corrected[0] / (corrected[1].sqrt() + 1e-6)
                if x.ndim > 1:
                    update = update + group["weight_decay"] * x
                    update = update * (x.norm() / update.norm())
                x -= rate * group["scale"] * update
