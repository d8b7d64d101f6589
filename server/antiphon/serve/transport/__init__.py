"""The connections of calls: messages in both directions, with a time limit for every wait."""
