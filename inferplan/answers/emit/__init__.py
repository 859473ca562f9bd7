"""A deployment as the command that starts it, or as a Kubernetes manifest: what was modelled, flag by flag.

Flags are those of the versions in ``configs/engines`` (docs/planning.md lists where each was read).
"""

from inferplan.answers.emit.engines import ENGINES, command, command_line
from inferplan.answers.emit.k8s import manifest
from inferplan.answers.emit.replica import Launch, launch, quantised_checkpoint
from inferplan.answers.emit.trtllm import trtllm_config

__all__ = [
    "ENGINES",
    "Launch",
    "command",
    "command_line",
    "launch",
    "manifest",
    "quantised_checkpoint",
    "trtllm_config",
]
