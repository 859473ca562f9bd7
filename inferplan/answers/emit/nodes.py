"""What Kubernetes calls a device: the resource to ask for, the label of its nodes, the image that runs on it."""

from __future__ import annotations

from inferplan.answers.emit.replica import Launch
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import UsageError

IMAGES = {
    ("vllm", "0.18", "NVIDIA"): "vllm/vllm-openai:v0.18.1",
    ("vllm", "0.20", "NVIDIA"): "vllm/vllm-openai:v0.20.2",
    ("vllm", "0.33", "NVIDIA"): "vllm/vllm-openai:v0.33.0",
    ("vllm", "0.18", "AMD"): "vllm/vllm-openai-rocm:v0.18.1",
    ("vllm", "0.20", "AMD"): "vllm/vllm-openai-rocm:v0.20.2",
    ("vllm", "0.33", "AMD"): "vllm/vllm-openai-rocm:v0.33.0",
    ("sglang", "0.5", "NVIDIA"): "lmsysorg/sglang:v0.5.23",
    ("trtllm", "1.0", "NVIDIA"): "nvcr.io/nvidia/tensorrt-llm/release:1.0.0",
    ("atom", "0.1", "AMD"): "rocm/atom:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_2.10.0_atom0.1.3",
}
"""Container images of the versions whose defaults are on file, for each maker of devices.

vLLM publishes its ROCm build as ``vllm/vllm-openai-rocm`` under the tags of its CUDA build. Of ATOM that of the last
release of its line is here, which InferenceX ran; 0.1.6 is in images that move (``rocm/atom-dev:latest``).
"""
_RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
_RESOURCES_OF = {"gaudi": "habana.ai/gaudi", "max": "gpu.intel.com/i915", "arc": "gpu.intel.com/xe"}
"""The resource that each device plugin registers, by maker and, for Intel, by the first word of the device's name."""
_NVIDIA = {
    "a100-80gb-sxm": "NVIDIA-A100-SXM4-80GB",
    "a100-80gb-pcie": "NVIDIA-A100-80GB-PCIe",
    "a100-40gb-pcie": "NVIDIA-A100-PCIE-40GB",
    "a10g": "NVIDIA-A10G",
    "b200-hgx": "NVIDIA-B200",
    "b300-hgx": "NVIDIA-B300-SXM6-AC",
    "dgx-spark-gb10": "NVIDIA-GB10",
    "gb200": "NVIDIA-GB200",
    "gb300": "NVIDIA-GB300",
    "h100-nvl": "NVIDIA-H100-NVL",
    "h100-pcie": "NVIDIA-H100-PCIe",
    "h100-sxm": "NVIDIA-H100-80GB-HBM3",
    "h20": "NVIDIA-H20",
    "h200-sxm": "NVIDIA-H200",
    "l4": "NVIDIA-L4",
    "l40s": "NVIDIA-L40S",
    "rtx-4090": "NVIDIA-GeForce-RTX-4090",
    "rtx-5090": "NVIDIA-GeForce-RTX-5090",
    "rtx-6000-ada": "NVIDIA-RTX-6000-Ada-Generation",
    "rtx-pro-6000-server": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
    "t4": "Tesla-T4",
}
"""``nvidia.com/gpu.product`` of GPU feature discovery: the product name of the driver, spaces written as dashes.

The names are those of the files that SGLang 0.5.23 tunes kernels in (``device_name=NVIDIA_H100_80GB_HBM3``) and of
node labels in published manifests.
"""
_AMD = {"mi300x": "AMD_Instinct_MI300X_OAM"}
"""``amd.com/gpu.product-name`` of AMD's node labeller, as the documentation of its device plugin shows it."""


def one_node(launch: Launch) -> bool:
    """Whether all devices of a replica are on one node.

    Where nobody says how many a node holds, they are if a link other than the network joins them all, and
    :func:`node_note` says that this is taken so. Raises ``UsageError`` where none does: over how many nodes they lie
    is not known then.
    """
    hardware, ranks = launch.deployment.hardware, launch.deployment.parallel.ranks
    if launch.devices_of_a_node is not None:
        return ranks <= launch.devices_of_a_node
    if ranks > max((link.domain or 1 for link in hardware.links), default=1):
        raise UsageError(
            f"how many {hardware.name} a node holds is not known, and one replica has {ranks}",
            because=f"no link inside a node that is on file joins {ranks}",
            hint="state it: --gpus-per-node N, or node: N in a copy of the hardware YAML",
        )
    return True


def node_note(launch: Launch) -> str:
    """That a replica was taken to be on one node; empty where the size of a node is known, or not asked for."""
    hardware, ranks = launch.deployment.hardware, launch.deployment.parallel.ranks
    if launch.devices_of_a_node is not None or ranks == 1:
        return ""
    return (
        f"one node is taken to hold {ranks} x {hardware.name}: how many it does is not on file; a smaller one: "
        "--gpus-per-node N"
    )


def resource(hardware: HardwareSpec) -> str:
    """The resource of a device; of a MIG instance that of its profile (NVIDIA's device plugin, strategy ``mixed``).

    Raises ``UsageError`` where no plugin for it is known.
    """
    if hardware.part is not None:
        return f"nvidia.com/mig-{hardware.part.profile}"
    known = _RESOURCES.get(hardware.vendor) or _RESOURCES_OF.get(hardware.name.partition("-")[0].rstrip("0123456789"))
    if known is None:
        raise UsageError(f"no Kubernetes resource name of {hardware.name} is known")
    return known


def node_selector(hardware: HardwareSpec) -> dict[str, str]:
    """The label that nodes with this device carry; empty where it is not known."""
    if hardware.name in _NVIDIA:
        return {"nvidia.com/gpu.product": _NVIDIA[hardware.name]}
    return {"amd.com/gpu.product-name": _AMD[hardware.name]} if hardware.name in _AMD else {}


def image(launch: Launch) -> str:
    """The image of the engine's version for the maker of the devices. Raises ``UsageError`` where none is on file."""
    engine, vendor = launch.deployment.engine, launch.deployment.hardware.vendor
    found = IMAGES.get((engine.name, engine.defaults.version, vendor))
    if found is None or engine.asked:
        raise UsageError(
            f"no container image of {engine.describe()} for {vendor} is on file", hint="--image REPOSITORY:TAG"
        )
    return found
