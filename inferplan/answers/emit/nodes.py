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
}
"""Container images of the versions whose defaults are on file, for each maker of devices.

vLLM publishes its ROCm build as ``vllm/vllm-openai-rocm`` under the tags of its CUDA build.
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


_DEVICES_OF_A_NODE = {"gb200": 4, "gb300": 4, "dgx-spark-gb10": 1}
"""Devices that one operating system sees, where they are not 8: trays of two superchips, a workstation of one."""


def devices_of_a_node(hardware: HardwareSpec) -> int:
    """The most devices of one node."""
    return _DEVICES_OF_A_NODE.get(hardware.name, 8)


def resource(hardware: HardwareSpec) -> str:
    """The resource of a device. Raises ``UsageError`` where no plugin for it is known."""
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
