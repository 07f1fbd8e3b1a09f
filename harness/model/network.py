"""The dense network of a run: DLRM by a backend, unless its optimizer is Adam; everything else by autograd."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from harness.config.model import TrainerConfig
from harness.core.errors import ConfigError
from harness.core.lookup import BatchPlan, coalesce
from harness.core.model_options import DlrmOptions, ModelOptions, Shape
from harness.core.seeds import generator
from harness.core.shares import ShareTrainer
from harness.model.backends import choose_backend
from harness.model.dlrm import DenseNetwork, Network
from harness.model.models import make_model
from harness.model.torch_backend import DENSE_OPTIMIZERS, cross_entropy


class AutogradNetwork(Network):
    """A replica of a model of :data:`harness.model.models.MODELS` with its optimizer.

    Results have the same bits in every process with the same state, batch, device and number of threads of torch. The
    state has parameters and buffers by name, the optimizer's state as ``NAME.STATE``, and ``steps``, int64 (1,): the
    number of steps so far, which dropout and the dense optimizer ``adam`` read. Raises ConfigError for options that do
    not fit.
    """

    def __init__(
        self,
        options: ModelOptions,
        shape: Shape,
        *,
        seed: int,
        learning_rate: float,
        optimizer: str = "sgd",
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._model = make_model(options, shape, seed=seed).to(device, dtype)
        self._name = options.name
        self._seed, self._learning_rate = seed, learning_rate
        self._num_tables, self._row_values = shape.num_tables, options.row_values
        self._like = torch.empty(0, device=device, dtype=dtype)  # inputs are moved to its device and dtype
        self._optimizer = DENSE_OPTIMIZERS[optimizer]
        self._parameters = dict(self._model.named_parameters())
        self._states = {
            name: [torch.zeros_like(value) for _ in self._optimizer.states] for name, value in self._parameters.items()
        }
        self._num_steps = torch.zeros(1, dtype=torch.int64)
        self._step_is_due = False

    def train(
        self, dense_BI: Tensor, rows_SX: Tensor, plan: BatchPlan, labels_B: Tensor, slots_N: Tensor | None = None
    ) -> tuple[float, Tensor]:
        """See Network. Raises ConfigError if the model's logits are not (B,) or ignore the rows."""
        self.apply_pending()
        self._num_steps += 1
        rows_BFW = self._rows(rows_SX if slots_N is None else rows_SX[slots_N], plan.inverse_A).requires_grad_()
        draws = generator(self._seed, "dropout", int(self._num_steps))
        logits_B = self._model.train()(dense_BI.to(self._like), rows_BFW, draws)
        if logits_B.shape != labels_B.shape:
            found = f"expected logits of shape {tuple(labels_B.shape)}, got {tuple(logits_B.shape)}"
            raise ConfigError(f"model.name: {self._name}: {found}")
        loss, grad_B1 = cross_entropy(logits_B.detach().unsqueeze(1), labels_B)
        self._model.zero_grad()
        logits_B.dot(grad_B1.squeeze(1)).backward()  # `logits_B.backward(grad_B)` would import sympy: 0.3 s a process
        self._step_is_due = True
        if rows_BFW.grad is None:
            raise ConfigError(f"model.name: {self._name}: expected logits that depend on the rows, but they do not")
        return loss, coalesce(rows_BFW.grad.cpu(), plan, num_skipped=0)

    def apply_pending(self, *, is_alone: bool = False) -> None:
        if not self._step_is_due:
            return
        self._step_is_due = False
        with torch.no_grad():
            for name, value in self._parameters.items():
                if value.grad is not None:
                    self._optimizer.step(
                        *(value, value.grad, self._states[name]),
                        learning_rate=self._learning_rate,
                        number=int(self._num_steps),
                    )

    @torch.no_grad()
    def _predict(self, dense_BI: Tensor, rows_NX: Tensor, inverse_A: Tensor) -> Tensor:
        no_draws = None
        return self._model.eval()(dense_BI.to(self._like), self._rows(rows_NX, inverse_A), no_draws).cpu()

    def _tensors(self) -> Mapping[str, Tensor]:
        """See Network. A model may assign a buffer anew in any step."""
        named = {name: value.detach() for name, value in self._model.state_dict(keep_vars=True).items()}
        for name, states in self._states.items():
            named |= {f"{name}.{key}": value for key, value in zip(self._optimizer.states, states, strict=True)}
        return {**named, "steps": self._num_steps}

    def _rows(self, rows_NX: Tensor, inverse_A: Tensor) -> Tensor:
        """The row of each access, (B, F, W)."""
        rows_AW = rows_NX[:, : self._row_values][inverse_A]
        return rows_AW.view(-1, self._num_tables, self._row_values).to(self._like)


def make_network(options: ModelOptions, shape: Shape, trainer: TrainerConfig, *, seed: int, is_eager: bool) -> Network:
    """Make the dense network of ``options`` for data of ``shape``, with the initial values that ``seed`` gives.

    DLRM with SGD or Adagrad runs on the backend of ``trainer``. DLRM with Adam, and every other model, runs by
    autograd, where ``is_eager`` (see :class:`DenseNetwork`) has no effect. Raises ConfigError for options, a backend or
    a device that do not fit.
    """
    learning_rate, optimizer, device = trainer.learning_rate, trainer.dense_optimizer, trainer.device
    shared: dict[str, Any] = {"seed": seed, "learning_rate": learning_rate, "optimizer": optimizer, "device": device}
    if isinstance(options, DlrmOptions) and optimizer != "adam":
        return DenseNetwork(options, shape, **shared, backend=choose_backend(trainer), is_eager=is_eager)
    return AutogradNetwork(options, shape, **shared)


def make_share_trainer(trainer: TrainerConfig) -> ShareTrainer:
    """What computes shares of a batch on a compute rank: of the model DLRM, by backend ``compiled``."""
    from harness.model.compiled_backend import ShareTeam  # noqa: PLC0415 - it needs what this machine may lack

    return ShareTeam(trainer.num_threads)
