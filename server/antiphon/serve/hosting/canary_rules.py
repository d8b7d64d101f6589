"""From the configuration to the rules of a trial."""

from __future__ import annotations

from antiphon.canary.trial import TrialRules
from antiphon.config import ServerConfig


def rules_of(config: ServerConfig) -> TrialRules | None:
    """The rules of the trial; None without a canary."""
    return None if config.canary is None else TrialRules(share=config.canary_share)
