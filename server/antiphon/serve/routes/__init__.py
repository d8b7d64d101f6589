"""What each path answers, and how its protocol frames it."""
