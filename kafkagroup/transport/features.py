"""The features that a cluster has finalized (KIP-584), as one of its brokers knows them."""

from __future__ import annotations

from collections.abc import Mapping

from kafkagroup._values import frozen
from kafkagroup._version import SOFTWARE_VERSION
from kafkagroup.errors import RemoteProtocolError
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.wire.messages.metadata import ApiVersionsRequest

__all__ = ["FinalizedFeatures", "request_features"]


@frozen
class FinalizedFeatures:
    """The level of each finalized feature. Of two values the one with the higher epoch is newer."""

    epoch: int
    """-1 if the broker does not report one."""
    levels: Mapping[str, int]


async def request_features(broker: BrokerClient) -> FinalizedFeatures:
    """Request the features. Raises: what `BrokerClient.attempt` raises; RemoteProtocolError if the
    broker returns an error code."""
    response = await broker.attempt(
        ApiVersionsRequest(
            client_software_name="kafkagroup", client_software_version=SOFTWARE_VERSION
        )
    )
    if response.error_code:
        raise RemoteProtocolError(f"ApiVersions was refused with code {response.error_code}")
    levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
    return FinalizedFeatures(response.finalized_features_epoch, levels)
