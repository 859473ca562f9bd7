"""What the price of each part of a deployment rests on, beside the kernels of the device, whose basis is their own.

measured: constants of measurements of that very part. published: public figures, whose rows docs/accuracy-parts.md has.
carried: constants of something else that was measured. formula: geometry and rates as they are told, nothing measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from inferplan.estimate.deployment import Deployment

Kind = Literal["measured", "published", "carried", "formula"]


class Resting(TypedDict):
    """kind: of the four above. said: of what, for people."""

    kind: Kind
    said: str


def parts_rest_on(deployment: Deployment) -> dict[str, Resting]:
    """Each part that is there beside the device's own kernels: adapters, host, link, mig, power_cap."""
    found: dict[str, Resting] = {}
    ideal = deployment.calibration.basis == "roofline"
    if deployment.lora is not None and deployment.lora.active:
        found["adapters"] = _adapters(deployment, ideal)
    if deployment.offload is not None:
        host = deployment.offload.host
        found["host"] = _host(host)
        found["link"] = {"kind": "formula", "said": "bytes over the link's rate as told, nothing overlapped"}
    if deployment.streamed is not None:
        found["link"] = {"kind": "formula", "said": "bytes of the weights over the link's rate as told"}
    if deployment.hardware.part is not None:
        shares = "shares of the whole device by the driver's lists"
        whole = deployment.hardware.part.of
        found["mig"] = (
            {"kind": "formula", "said": shares}
            if ideal
            else {"kind": "carried", "said": f"constants of the whole {whole}, {shares}"}
        )
    if deployment.cap is not None:
        found["power_cap"] = {"kind": "published", "said": "the law of voltage by capped runs of one RTX PRO 6000"}
    return found


def _adapters(deployment: Deployment, ideal: bool) -> Resting:
    if ideal:
        return {"kind": "formula", "said": "FLOP and bytes of the adapters, no launches"}
    if deployment.adapters_unmeasured:
        return {
            "kind": "carried",
            "said": "bytes and launches of the adapters' kernels, with a plain matmul's constants",
        }
    return {"kind": "measured", "said": "constants of the adapters' kernels"}


def _host(host: Deployment) -> Resting:
    """Of a host whose kernels nobody measured the memory's share is published, the rest is carried."""
    if host.calibration.basis == "roofline":
        return {"kind": "formula", "said": "FLOP and bytes at the host's peaks"}
    if host.calibration.name == host.hardware.name:
        return {"kind": "measured", "said": f"constants of {host.hardware.name}"}
    return {
        "kind": "published",
        "said": f"shares of DRAM's peak by tokens of other hosts; else constants {host.calibration.described}",
    }
