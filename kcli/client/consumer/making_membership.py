"""The membership of a consumer by its setting group.protocol."""

from __future__ import annotations

from kcli.client.consumer.classic_membership import ClassicMembership
from kcli.client.consumer.consumer_config import CONSUMER, ConsumerConfig
from kcli.client.consumer.consumer_membership import ConsumerMembership
from kcli.client.consumer.subscription_state import SubscriptionState
from kcli.client.network_client import NetworkClient


def make_membership(
    network: NetworkClient, config: ConsumerConfig, subscription: SubscriptionState
) -> ClassicMembership | ConsumerMembership:
    """Return the membership; it joins its group when the consumer is subscribed, and logs where the network does.

    Raises ConfigError.
    """
    if config.group_protocol == CONSUMER:
        return ConsumerMembership(network, config, subscription, network.log)
    return ClassicMembership(network, config, subscription, network.log)
