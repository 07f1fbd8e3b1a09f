"""Choice of the backend that computes the dense network: ``torch`` or ``compiled``."""

import torch

from harness.config.model import BackendName, TrainerConfig
from harness.core.errors import ConfigError
from harness.kernels import products


def choose_backend(config: TrainerConfig, model: str = "dlrm") -> BackendName:
    """The backend that ``config`` asks for; for ``auto``, ``compiled`` where it can run ``model``, else ``torch``."""
    if config.backend != "auto":
        return config.backend
    return "torch" if _obstacle(config, model) else "compiled"


def check_backend(config: TrainerConfig, model: str = "dlrm") -> None:
    """Raise ConfigError if the backend of ``config`` cannot run ``model`` here, or torch was built without its device.

    Opens no device, so a GPU that is missing is not noticed.
    """
    if config.backend == "compiled" and (why := _obstacle(config, model)):
        raise ConfigError(f"trainer.backend: compiled, but {why}; set trainer.backend=torch or auto")
    if config.device == "cuda" and torch.version.cuda is None:
        raise ConfigError(f"trainer.device: expected a torch with CUDA for cuda, got {torch.__version__}; use cpu")


def _obstacle(config: TrainerConfig, model: str) -> str | None:
    """Why the compiled backend cannot run ``model`` on this machine; None if it can."""
    if model != "dlrm":
        return f"it computes model dlrm only, not {model}"
    if config.dense_optimizer == "adam":
        return "it lacks the dense optimizer adam"
    if config.device != "cpu":
        return f"it runs on the CPU only, not on {config.device}"
    if not products.AVAILABLE:
        return "it needs fused multiply-adds, which this machine lacks"
    return None
