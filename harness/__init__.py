"""A research harness for failures in recommendation-model training."""
